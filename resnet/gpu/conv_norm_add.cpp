#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNormAdd final : public Unit, public FirstPass {
 public:
  GpuConvNormAdd(Shared& shared, const ConvNormAddSpec& spec)
      : shared_(shared), spec_(spec), dsum_(spec.dy.first) {
    MemoryPlan& plan = shared.context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const std::size_t bytes = y.count() * size_of(shared.type);
    const Moments when = spec.when;
    mask_ = plan.reserve("mask", gpu::mask_bytes(y, shared.type), when.forward, when.backward);
    dz_ = plan.reserve("dz", bytes, when.backward, when.backward);  // of one norm after the other
    parts_ = plan.reserve("sums", reduction_scratch(y, shared.type, 3) * sizeof(float),
                          when.backward - 1, when.backward);
    main_ = std::make_unique<NormedConvolution>(shared, spec.layer, when, spec.x,
                                                spec.x_in_backward(), dsum_, dz_, spec.dx);
    if (spec.shortcut_layer)
      projection_ =
          std::make_unique<NormedConvolution>(shared, *spec.shortcut_layer, when, spec.shortcut,
                                              spec.shortcut, dsum_, dz_, spec.dshortcut);
    shared.first_passes.emplace(dsum_, this);
  }

  void bind() override {
    main_->bind();
    if (projection_) projection_->bind();
  }

  void forward(Pass pass) override {
    main_->forward(pass);
    NormVectors shortcut_norm{};
    if (projection_) {
      projection_->forward(pass);
      shortcut_norm = projection_->vectors();
    }
    log("normalise_add_relu", 3 * main_->bytes() + mask_bytes(), [&] {
      normalise_add_relu(main_->z(), main_->vectors(),
                         projection_ ? projection_->z() : spec_.shortcut->data(),
                         projection_ ? &shortcut_norm : nullptr, spec_.y->data(),
                         mask_->as<std::uint8_t>(), main_->shape(), shared_.type, shared_.stream);
    });
  }

  std::string name() const override {
    return projection_ ? "end of a block with projection" : "end of a block";
  }

  bool can_fuse(const ConvShape& conv, bool through_norm) const override {
    return spec_.dy.second != nullptr && !through_norm &&
           has_conv_add_relu_backward(shared_.type, conv.k, conv.x.c);
  }

  void randomise_inputs() const override {
    shared_.randomise(*spec_.dy.second, shared_.type);
    shared_.randomise(*mask_, shared_.type);  // bits, half of which are set
    main_->randomise_z();
    if (projection_) projection_->randomise_z();
  }

  void run() override {
    const Ends ends(*this);
    const Slot* second = spec_.dy.second;
    const int tensors = 3 + (second != nullptr ? 1 : 0) + (projection_ ? 1 : 0);
    log("add_relu_backward", tensors * main_->bytes() + mask_bytes(), [&] {
      count_ = add_relu_backward(dsum_->data(), second != nullptr ? second->data() : nullptr,
                                 mask_->as<std::uint8_t>(), ends.main, ends.shortcut(),
                                 main_->shape(), shared_.type, parts_->as<float>(), shared_.stream);
    });
  }

  void run(const GradientProduct& product, const Work& convolution) override {
    const Ends ends(*this);
    Work work = convolution;
    work.kernel = "conv_add_relu_backward";
    work.bytes += (projection_ ? 3 : 2) * main_->bytes() + mask_bytes();
    shared_.context.log.run(work, [&] {
      count_ = conv_add_relu_backward(product, spec_.dy.second->data(), mask_->as<std::uint8_t>(),
                                      dsum_->data(), ends.main, ends.shortcut(), main_->shape(),
                                      shared_.type, parts_->as<float>(), shared_.stream);
    });
  }

  void backward() override {
    if (!convolution_runs) run();
    const Ends ends(*this);
    const double bytes = (projection_ ? 3.0 : 2.0) * count_ * main_->shape().c * sizeof(float);
    log("finish_add_relu_backward", bytes, [&] {
      finish_add_relu_backward(parts_->as<float>(), count_, ends.main, ends.shortcut(),
                               main_->shape(), shared_.type, shared_.stream);
    });
    main_->backward();
    if (projection_) projection_->backward();
  }

 private:
  /// The norms that end the block.
  struct Ends {
    AddedNorm main;
    std::optional<AddedNorm> projection;

    explicit Ends(const GpuConvNormAdd& unit) : main(of(*unit.main_)) {
      if (unit.projection_) projection = of(*unit.projection_);
    }
    const AddedNorm* shortcut() const { return projection ? &*projection : nullptr; }
    static AddedNorm of(const NormedConvolution& convolution) {
      return {convolution.z(), convolution.vectors(), convolution.parameters()};
    }
  };

  template <class Body>
  void log(const char* kernel, double bytes, Body&& body) const {
    shared_.run(kernel, main_->weight(), bytes, body);
  }
  double mask_bytes() const { return static_cast<double>(mask_->bytes()); }

  Shared& shared_;
  ConvNormAddSpec spec_;
  const Slot* mask_;
  const Slot* dz_;
  const Slot* parts_;
  const Slot* dsum_;  // in the place of the gradient's first addend; the identity hands it on
  int count_ = 0;     // of parts
  std::unique_ptr<NormedConvolution> main_;
  std::unique_ptr<NormedConvolution> projection_;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm_add(Shared& shared, const ConvNormAddSpec& spec) {
  return std::make_unique<GpuConvNormAdd>(shared, spec);
}

}  // namespace shakedown::gpu
