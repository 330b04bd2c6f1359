#include "common/ensure.hpp"
#include "resnet/gpu/normed_convolution.hpp"

namespace shakedown::gpu {
namespace {

/// Max-pooling before the norm and the ReLU, which are monotonic: of z only what is pooled goes
/// through them.
class GpuStem : public NetworkUnit {
 public:
  GpuStem(GpuContext& context, const StemSpec& spec) : context_(context), spec_(spec) {
    ENSURE(spec.dy.second_stride == 1, "the stem's gradient: whole");
    MemoryPlan& plan = context.plan;
    const Moments when = spec.when;
    argmax_ = plan.reserve("stem argmax", y_shape().count(), when.forward, when.backward);
    peak_ = plan.reserve("stem peak", y_shape().count() * size_of(context.type), when.forward,
                         when.backward);
    sums_ = plan.reserve("stem sums", reduction_scratch(y_shape(), context.type, 2) * sizeof(float),
                         when.backward, when.backward);
  }

  void forward(Pass pass) final {
    convolve_and_pool(pass);
    run("normalise_relu", 2 * pooled_bytes(),
        [&] { normalise_relu(peak_->data(), vectors(), spec_.y->data(), context_.on(y_shape())); });
  }

  void backward() final {
    const void* dy_b = spec_.dy.second != nullptr ? spec_.dy.second->data() : nullptr;
    run("stem_pool_backward", (dy_b != nullptr ? 4 : 3) * pooled_bytes(), [&] {
      stem_pool_backward(spec_.dy.first->data(), dy_b, peak_->data(), parameters(), vectors(),
                         sums_->as<float>(), on());
    });
    make_weight_gradient();
  }

 protected:
  /// Leaves the peaks and their places, and the norm's vectors.
  virtual void convolve_and_pool(Pass pass) = 0;
  /// From dsum.
  virtual void make_weight_gradient() = 0;
  virtual NormVectors vectors() const = 0;

  template <class Body>
  void run(const char* kernel, double bytes, Body&& body, double flop = 0) const {
    context_.log.run({kernel, spec_.layer.weight, bytes, flop}, body);
  }
  ActivationShape shape() const { return spec_.layer.conv.y(); }
  Launch on() const { return context_.on(shape()); }
  ActivationShape y_shape() const { return pooled(shape()); }
  NormParameters parameters() const { return context_.parameters_of(spec_.layer); }
  const void* dsum() const { return spec_.dy.first->data(); }
  std::uint8_t* argmax() const { return argmax_->as<std::uint8_t>(); }
  double bytes() const { return context_.bytes_of(shape()); }
  double pooled_bytes() const { return static_cast<double>(peak_->bytes()); }
  double argmax_bytes() const { return static_cast<double>(argmax_->bytes()); }

  GpuContext& context_;
  StemSpec spec_;
  const Slot* argmax_;
  const Slot* peak_;
  const Slot* sums_;
};

class PlainStem final : public GpuStem {
 public:
  PlainStem(GpuContext& context, const StemSpec& spec) : GpuStem(context, spec) {
    const Moments when = spec.when;
    dz_ = context.plan.reserve("stem dz", shape().count() * size_of(context.type), when.backward,
                               when.backward);
    convolution_ = std::make_unique<NormedConvolution>(
        context, spec.layer, when,
        NormedConvolution::Tensors{spec.x, spec.x, nullptr, dz_, nullptr});
  }

  void bind() override { convolution_->bind(); }

 private:
  void convolve_and_pool(Pass pass) override {
    convolution_->forward(pass);
    run("stem_pool", bytes() + pooled_bytes() + argmax_bytes(),
        [&] { stem_pool(convolution_->z(), parameters().gamma, peak_->data(), argmax(), on()); });
  }
  void make_weight_gradient() override {
    run("stem_pool_apply", pooled_bytes() + argmax_bytes() + 2 * bytes(), [&] {
      stem_pool_apply(dsum(), argmax(), convolution_->z(), vectors(), dz_->data(), on());
    });
    convolution_->backward();
  }
  NormVectors vectors() const override { return convolution_->vectors(); }

  const Slot* dz_;
  std::unique_ptr<NormedConvolution> convolution_;
};

/// The convolution by our own kernels, which pool and sum what they compute, and whose weights'
/// gradient needs no dz.
class FusedStem final : public GpuStem {
 public:
  FusedStem(GpuContext& context, const StemSpec& spec) : GpuStem(context, spec) {
    MemoryPlan& plan = context.plan;
    const Moments when = spec.when;
    z_ = plan.reserve("stem output", shape().count() * size_of(context.type), when.forward,
                      when.backward);
    vectors_ = plan.reserve(
        "stem norm", NormVectors::kCount * static_cast<std::size_t>(shape().c) * sizeof(float),
        when.forward, when.backward);
    forward_partials_ = plan.reserve("stem partials", conv_stem_pool_partials() * sizeof(float),
                                     when.forward, when.forward);
    backward_partials_ =
        plan.reserve("stem partials", conv_stem_weight_gradient_partials() * sizeof(float),
                     when.backward, when.backward);
    ++context.fused.norms;
    ++context.fused.statistics;
  }

  static bool replaces(const GpuContext& context, const ConvShape& conv) {
    return (context.tuning.requests(Fusion::stem) || context.tuner.chooses()) &&
           has_conv_stem_pool(context.type, conv) &&
           has_conv_stem_weight_gradient(context.type, conv);
  }

  void bind() override {}

 private:
  void convolve_and_pool(Pass pass) override {
    auto* partials = forward_partials_->as<float>();
    const bool trains = pass == Pass::training;
    int count = 0;
    run(
        "conv_stem_pool", image_bytes() + (trains ? bytes() : 0) + pooled_bytes() + argmax_bytes(),
        [&] {
          count = conv_stem_pool(spec_.x->data(), weights(), parameters(),
                                 trains ? z_->data() : nullptr, peak_->data(), argmax(), partials,
                                 on());
        },
        spec_.layer.conv.flop());
    if (!trains)
      return running_statistics(shape().c, parameters(), vectors(), context_.cuda_stream);
    run("finish_conv_stem_pool", static_cast<double>(forward_partials_->bytes()),
        [&] { finish_conv_stem_pool(partials, count, parameters(), vectors(), on()); });
  }
  void make_weight_gradient() override {
    run(
        "conv_stem_weight_gradient", image_bytes() + bytes() + pooled_bytes() + argmax_bytes(),
        [&] {
          conv_stem_weight_gradient(dsum(), argmax(), z_->data(), vectors(), spec_.x->data(),
                                    context_.weights.gradient(spec_.layer.weight),
                                    backward_partials_->as<float>(), on());
        },
        spec_.layer.conv.flop());
  }
  NormVectors vectors() const override { return NormVectors::in(vectors_->as<float>(), shape().c); }
  const void* weights() const { return context_.weights.compute(spec_.layer.weight); }
  double image_bytes() const { return context_.bytes_of(spec_.layer.conv.x); }

  const Slot* z_;
  const Slot* vectors_;
  const Slot* forward_partials_;
  const Slot* backward_partials_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_stem(GpuContext& context, const StemSpec& spec) {
  if (FusedStem::replaces(context, spec.layer.conv))
    return std::make_unique<FusedStem>(context, spec);
  return std::make_unique<PlainStem>(context, spec);
}

}  // namespace shakedown::gpu
