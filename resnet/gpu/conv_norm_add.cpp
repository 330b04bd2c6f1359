#include "resnet/gpu/gram_convolution.hpp"
#include "resnet/gpu/normed_convolution.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNormAdd final : public Unit, public FusableReduction {
 public:
  GpuConvNormAdd(GpuContext& context, const ConvNormAddSpec& spec)
      : context_(context),
        spec_(spec),
        dsum_(spec.dy.first),
        inner_(context.reduction_over(spec.dx)) {
    MemoryPlan& plan = context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const std::size_t bytes = y.count() * size_of(context.type);
    const Moments when = spec.when;
    mask_ = plan.reserve("mask", gpu::mask_bytes(y, context.type), when.forward, when.backward);
    dz_ = plan.reserve("dz", bytes, when.backward, when.backward);  // of one norm after the other
    partials_ = plan.reserve("sums", reduction_scratch(y, context.type, 3) * sizeof(float),
                             when.backward - 1, when.backward);
    const ConvShape& conv = spec.layer.conv;
    if (GramConvolution::exists(context, conv, inner_) &&
        context.tuner.may_fuse(Fusion::gram, GramConvolution::key(context, conv)))
      gram_.emplace(context, spec.layer, when,
                    GramConvolution::Tensors{spec.x_in_backward(), dsum_}, *inner_);
    if (gram_ && !gram_->usable()) gram_.reset();
    main_ = std::make_unique<NormedConvolution>(
        context, spec.layer, when,
        NormedConvolution::Tensors{.x = spec.x,
                                   .x_in_backward = spec.x_in_backward(),
                                   .dnormed = dsum_,
                                   .dz = dz_,
                                   .dx = spec.dx,
                                   .runs_reduction = gram_.has_value()});
    if (spec.shortcut_layer)
      projection_ = std::make_unique<NormedConvolution>(
          context, *spec.shortcut_layer, when,
          NormedConvolution::Tensors{spec.shortcut, spec.shortcut, dsum_, dz_, spec.dshortcut,
                                     spec.dshortcut_stride > 1});
    context.reductions.emplace(dsum_, this);
  }

  void bind() override {
    main_->bind();
    if (projection_) projection_->bind();
    if (gram_) bind_gram();
  }

  void forward(Pass pass) override {
    main_->forward(pass);
    NormVectors shortcut_norm{};
    if (projection_) {
      projection_->forward(pass);
      shortcut_norm = projection_->vectors();
    }
    log("normalise_add_relu", 3 * main_->bytes() + mask_bytes(), [&] {
      normalise_add_relu(
          main_->z(), main_->vectors(), projection_ ? projection_->z() : spec_.shortcut->data(),
          projection_ ? &shortcut_norm : nullptr, spec_.y->data(), mask_->as<std::uint8_t>(),
          main_->shape(), context_.type, context_.cuda_stream);
    });
  }

  std::string name() const override {
    return std::string("end of a block") + (projection_ ? " with projection" : "") +
           (gram_ ? ", its norm through the Gram matrix" : "");
  }

  bool can_fuse(const ConvShape& conv, bool through_norm) const override {
    return spec_.dy.second != nullptr && !through_norm &&
           has_conv_add_relu_backward(context_.type, conv.k, conv.x.c);
  }

  void randomise_inputs() const override {
    if (spec_.dy.second != nullptr) context_.randomise(*spec_.dy.second, context_.type);
    context_.randomise(*mask_, context_.type);  // bits, half of which are set
    main_->randomise_z();
    if (projection_) projection_->randomise_z();
  }

  void run_unfused() override {
    const Ends ends(*this);
    log("add_relu_backward",
        (2 + ends.centred().count) * main_->bytes() + second_bytes() + mask_bytes(), [&] {
          count_ = add_relu_backward(dsum_->data(), second(), mask_->as<std::uint8_t>(),
                                     ends.centred(), main_->shape(), context_.type,
                                     partials_->as<float>(), context_.cuda_stream);
        });
  }

  void run_fused(const GradientProduct& product, const Work& convolution) override {
    const Ends ends(*this);
    Work work = convolution;
    work.kernel = "conv_add_relu_backward";
    work.bytes += ends.centred().count * main_->bytes() + second_bytes() + mask_bytes();
    context_.log.run(work, [&] {
      count_ = conv_add_relu_backward(product, second(), mask_->as<std::uint8_t>(), dsum_->data(),
                                      ends.centred(), main_->shape(), context_.type,
                                      partials_->as<float>(), context_.cuda_stream);
    });
  }

  void backward() override {
    if (!convolution_runs) run_unfused();
    finish_backward();
    if (projection_) projection_->backward();
  }

 private:
  /// What is after the reduction, of the main path.
  void finish_backward() {
    const Ends ends(*this);
    const double bytes = (1.0 + ends.centred().count) * count_ * main_->shape().c * sizeof(float);
    log("finish_add_relu_backward", bytes, [&] {
      if (uses_gram_)
        finish_add_relu_backward_sum(partials_->as<float>(), count_, gram_->sum(), ends.shortcut(),
                                     main_->shape(), context_.type, context_.cuda_stream);
      else
        finish_add_relu_backward(partials_->as<float>(), count_, ends.main, ends.shortcut(),
                                 main_->shape(), context_.type, context_.cuda_stream);
    });
    if (uses_gram_)
      gram_->backward(main_->parameters(), main_->vectors());
    else
      main_->backward();
  }

  /// Goes through the Gram matrix where that is faster, with the reduction that needs z otherwise.
  void bind_gram() {
    if (uses_gram_) --context_.fused.gram;  // bound again
    gram_->bind();
    const auto randomise_all = [&] {
      context_.randomise(*dsum_, context_.type);
      randomise_inputs();
      gram_->randomise_inputs();
      inner_->randomise_inputs();
    };
    const auto with = [&](bool uses_gram) {
      uses_gram_ = uses_gram;
      run_unfused();
      finish_backward();
    };
    uses_gram_ = context_.tuner.fuses(
        GramConvolution::key(context_, spec_.layer.conv), randomise_all, [&] { with(true); },
        [&] { with(false); });
    if (uses_gram_) ++context_.fused.gram;
    inner_->sums_output = uses_gram_;
  }

  /// The norms that end the block.
  struct Ends {
    AddedNorm main;
    std::optional<AddedNorm> projection;
    bool uses_gram;

    explicit Ends(const GpuConvNormAdd& unit) : main(of(*unit.main_)), uses_gram(unit.uses_gram_) {
      if (unit.projection_) projection = of(*unit.projection_);
    }
    const AddedNorm* shortcut() const { return projection ? &*projection : nullptr; }
    CentredTensors centred() const {
      return CentredTensors::of(uses_gram ? nullptr : &main, shortcut());
    }
    static AddedNorm of(const NormedConvolution& convolution) {
      return {convolution.z(), convolution.vectors(), convolution.parameters()};
    }
  };

  template <class Body>
  void log(const char* kernel, double bytes, Body&& body) const {
    context_.run(kernel, main_->weight(), bytes, body);
  }
  double mask_bytes() const { return static_cast<double>(mask_->bytes()); }

  Addend second() const {
    const Slot* slot = spec_.dy.second;
    return {slot != nullptr ? slot->data() : nullptr, spec_.dy.second_stride};
  }
  double second_bytes() const {
    return spec_.dy.second != nullptr ? static_cast<double>(spec_.dy.second->bytes()) : 0;
  }

  GpuContext& context_;
  ConvNormAddSpec spec_;
  const Slot* mask_;
  const Slot* dz_;
  const Slot* partials_;
  const Slot* dsum_;  // in the place of the gradient's first addend; the identity hands it on
  FusableReduction* inner_;  // over dx, or null
  int count_ = 0;            // of partial sums
  std::unique_ptr<NormedConvolution> main_;
  std::unique_ptr<NormedConvolution> projection_;
  std::optional<GramConvolution> gram_;  // where it may be main_'s backward pass
  bool uses_gram_ = false;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm_add(GpuContext& context, const ConvNormAddSpec& spec) {
  return std::make_unique<GpuConvNormAdd>(context, spec);
}

}  // namespace shakedown::gpu
