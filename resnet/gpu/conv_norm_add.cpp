#include "resnet/gpu/gram_convolution.hpp"
#include "resnet/gpu/normed_convolution.hpp"
#include "resnet/gpu/wide_block_ends.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNormAdd final : public NetworkUnit, public FusableReduction {
 public:
  GpuConvNormAdd(GpuContext& context, const ConvNormAddSpec& spec)
      : context_(context), spec_(spec), dsum_(spec.dy.first) {
    MemoryPlan& plan = context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const std::size_t bytes = y.count() * size_of(context.type);
    const Moments when = spec.when;
    mask_ = plan.reserve("mask", gpu::mask_bytes(y, context.type), when.forward, when.backward);
    partials_ = plan.reserve("sums", reduction_scratch(y, context.type, 3) * sizeof(float),
                             when.backward - 1, when.backward);
    FusableReduction* const inner = context.reduction_over(spec.dx);
    const bool uses_gram = GramConvolution::replaces(context, spec.layer.conv, inner);
    const Slot* dz = nullptr;  // of one norm after the other
    if (!uses_gram || spec.shortcut_layer)
      dz = plan.reserve("dz", bytes, when.backward, when.backward);
    if (uses_gram)
      gram_ = std::make_unique<GramConvolution>(
          context, spec.layer, when,
          GramConvolution::Tensors{spec.x, spec.x_in_backward(), dsum_, spec.dx}, *inner);
    else
      main_ = std::make_unique<NormedConvolution>(
          context, spec.layer, when,
          NormedConvolution::Tensors{spec.x, spec.x_in_backward(), dsum_, dz, spec.dx});
    if (spec.shortcut_layer)
      projection_ = std::make_unique<NormedConvolution>(
          context, *spec.shortcut_layer, when,
          NormedConvolution::Tensors{spec.shortcut, spec.shortcut, dsum_, dz, spec.dshortcut,
                                     spec.dshortcut_stride > 1});
    context.reductions.emplace(dsum_, this);
  }

  void bind() override {
    if (gram_)
      gram_->bind();
    else
      main_->bind();
    if (projection_) projection_->bind();
  }

  void forward(Pass pass) override {
    if (gram_)
      gram_->forward(pass);
    else
      main_->forward(pass);
    const void* shortcut = spec_.shortcut->data();
    std::optional<NormVectors> shortcut_norm;
    if (projection_) {
      projection_->forward(pass);
      shortcut = projection_->z();
      shortcut_norm = projection_->vectors();
    }
    end_block(shortcut, shortcut_norm ? &*shortcut_norm : nullptr);
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
    if (main_) main_->randomise_z();
    if (projection_) projection_->randomise_z();
  }

  void run_unfused() override {
    const Ends ends(*this);
    log("add_relu_backward", (2 + ends.centred().count) * bytes() + second_bytes() + mask_bytes(),
        [&] {
          count_ = add_relu_backward(dsum_->data(), second(), mask_->as<std::uint8_t>(),
                                     ends.centred(), shape(), context_.type, partials_->as<float>(),
                                     context_.cuda_stream);
        });
  }

  void run_fused(const GradientProduct& product, const Work& convolution) override {
    const Ends ends(*this);
    Work work = convolution;
    work.kernel = "conv_add_relu_backward";
    work.bytes += ends.centred().count * bytes() + second_bytes() + mask_bytes();
    const CentredTensors centred = ends.centred();
    const auto* const mask = mask_->as<std::uint8_t>();
    const bool wide = centred.count == 0 && second().stride == 1 &&
                      has_wide_conv_add_relu_backward(context_.type, product.depth, shape().c);
    context_.log.run(work, [&] {
      count_ = wide ? wide_conv_add_relu_backward(product, second().data, mask, dsum_->data(),
                                                  shape(), context_.type, partials_->as<float>(),
                                                  context_.cuda_stream)
                    : conv_add_relu_backward(product, second(), mask, dsum_->data(), centred,
                                             shape(), context_.type, partials_->as<float>(),
                                             context_.cuda_stream);
    });
  }

  void backward() override {
    if (!convolution_runs) run_unfused();
    finish_backward();
    if (projection_) projection_->backward();
  }

 private:
  /// Normalises z, adds the shortcut, applies the ReLU.
  void end_block(const void* shortcut, const NormVectors* shortcut_norm) const {
    auto* const mask = mask_->as<std::uint8_t>();
    if (!gram_)
      return log("normalise_add_relu", 3 * bytes() + mask_bytes(), [&] {
        normalise_add_relu(main_->z(), main_->vectors(), shortcut, shortcut_norm, spec_.y->data(),
                           mask, shape(), context_.type, context_.cuda_stream);
      });
    const ConvShape& conv = spec_.layer.conv;
    const double weights = static_cast<double>(conv.weight_count() * size_of(context_.type));
    const Work work{"conv_normalise_add_relu", spec_.layer.weight,
                    context_.bytes_of(conv.x) + weights + 2 * bytes() + mask_bytes(), conv.flop()};
    const bool wide = has_wide_conv_normalise_add_relu(context_.type, conv.x.c, conv.k);
    const auto run = wide ? wide_conv_normalise_add_relu : conv_normalise_add_relu;
    context_.log.run(work, [&] {
      run(gram_->z(), gram_->vectors(), shortcut, shortcut_norm, spec_.y->data(), mask, shape(),
          context_.type, context_.cuda_stream);
    });
  }

  /// What is after the reduction, of the main path.
  void finish_backward() const {
    const Ends ends(*this);
    const double bytes = (1.0 + ends.centred().count) * count_ * shape().c * sizeof(float);
    log("finish_add_relu_backward", bytes, [&] {
      if (gram_)
        finish_add_relu_backward_sum(partials_->as<float>(), count_, gram_->sum(),
                                     given(ends.projection), shape(), context_.type,
                                     context_.cuda_stream);
      else
        finish_add_relu_backward(partials_->as<float>(), count_, *ends.main, given(ends.projection),
                                 shape(), context_.type, context_.cuda_stream);
    });
    if (gram_)
      gram_->backward();
    else
      main_->backward();
  }

  /// The norms that end the block, of which z is in memory.
  struct Ends {
    std::optional<AddedNorm> main;
    std::optional<AddedNorm> projection;

    explicit Ends(const GpuConvNormAdd& unit)
        : main(of(unit.main_.get())), projection(of(unit.projection_.get())) {}
    CentredTensors centred() const { return CentredTensors::of(given(main), given(projection)); }
    static std::optional<AddedNorm> of(const NormedConvolution* convolution) {
      if (convolution == nullptr) return std::nullopt;
      return AddedNorm{convolution->z(), convolution->vectors(), convolution->parameters()};
    }
  };
  static const AddedNorm* given(const std::optional<AddedNorm>& norm) {
    return norm ? &*norm : nullptr;
  }

  template <class Body>
  void log(const char* kernel, double bytes, Body&& body) const {
    context_.run(kernel, spec_.layer.weight, bytes, body);
  }
  ActivationShape shape() const { return spec_.layer.conv.y(); }
  double bytes() const { return context_.bytes_of(shape()); }
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
  const Slot* partials_;
  const Slot* dsum_;  // in the place of the gradient's first addend; the identity hands it on
  int count_ = 0;     // of partial sums
  std::unique_ptr<NormedConvolution> main_;  // the main path, or
  std::unique_ptr<GramConvolution> gram_;    // the same without z
  std::unique_ptr<NormedConvolution> projection_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_conv_norm_add(GpuContext& context, const ConvNormAddSpec& spec) {
  return std::make_unique<GpuConvNormAdd>(context, spec);
}

}  // namespace shakedown::gpu
