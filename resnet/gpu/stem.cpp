#include "common/ensure.hpp"
#include "resnet/gpu/convolution.hpp"

namespace shakedown::gpu {
namespace {

/// Max-pooling before the norm and the ReLU, which are monotonic: of z only what is pooled goes
/// through them. The convolution is cuDNN's, or by our own kernels, which pool and sum what they
/// compute, and whose weights' gradient needs no dz.
class GpuStem final : public NetworkUnit {
 public:
  GpuStem(GpuContext& context, const StemSpec& spec) : context_(context), spec_(spec) {
    ENSURE(spec.dy.second_stride == 1, "the stem's gradient: whole");
    const Moments when = spec.when;
    const std::size_t z_bytes = shape().count() * size_of(context.type);
    argmax_ = context.saved("stem argmax", y_shape().count(), when);
    peak_ = context.saved("stem peak", y_shape().count() * size_of(context.type), when);
    sums_ = floats("stem sums", reduction_scratch(y_shape(), context.type, 2), when.backward);
    if (!has_own_convolution()) {
      dz_ = context.scratch("stem dz", z_bytes, when.backward);
      convolution_ = std::make_unique<NormedConvolution>(
          context, spec.layer, when,
          NormedConvolution::Tensors{spec.x, spec.x, nullptr, dz_, nullptr});
      return;
    }
    z_ = context.saved("stem output", z_bytes, when);
    vectors_ = context.saved("stem norm", NormVectors::bytes(shape().c), when);
    forward_partials_ = floats("stem partials", conv_stem_pool_partials(), when.forward);
    backward_partials_ =
        floats("stem partials", conv_stem_weight_gradient_partials(), when.backward);
    ++context.fused.norms;
    ++context.fused.statistics;
  }

  void bind() override {
    if (convolution_) convolution_->bind();
  }

  void forward(Pass pass) override {
    if (convolution_)
      pool_after_convolution(pass);
    else
      convolve_and_pool(pass);
    run("normalise_relu", 2 * pooled_bytes(),
        [&] { normalise_relu(peak_->data(), vectors(), spec_.y->data(), context_.on(y_shape())); });
  }

  void backward() override {
    const void* dy_b = spec_.dy.second != nullptr ? spec_.dy.second->data() : nullptr;
    run("stem_pool_backward", (dy_b != nullptr ? 4 : 3) * pooled_bytes(), [&] {
      stem_pool_backward(dsum(), dy_b, peak_->data(), parameters(), vectors(), sums_->as<float>(),
                         on());
    });
    if (!convolution_)
      return run(
          "conv_stem_weight_gradient", image_bytes() + bytes() + pooled_bytes() + argmax_bytes(),
          [&] {
            conv_stem_weight_gradient(dsum(), argmax(), z_->data(), vectors(), spec_.x->data(),
                                      context_.weights.gradient(spec_.layer.weight),
                                      backward_partials_->as<float>(), on());
          },
          spec_.layer.conv.flop());
    run("stem_pool_apply", pooled_bytes() + argmax_bytes() + 2 * bytes(), [&] {
      stem_pool_apply(dsum(), argmax(), convolution_->z(), vectors(), dz_->data(), on());
    });
    convolution_->backward();
  }

 private:
  bool has_own_convolution() const {
    const ConvShape& conv = spec_.layer.conv;
    return (context_.tuning.requests(Fusion::stem) || context_.tuner.chooses()) &&
           has_conv_stem_pool(context_.type, conv) &&
           has_conv_stem_weight_gradient(context_.type, conv);
  }

  // Both leave the peaks and their places, and the norm's vectors.
  void pool_after_convolution(Pass pass) {
    convolution_->forward(pass);
    run("stem_pool", bytes() + pooled_bytes() + argmax_bytes(),
        [&] { stem_pool(convolution_->z(), parameters().gamma, peak_->data(), argmax(), on()); });
  }
  void convolve_and_pool(Pass pass) {
    auto* partials = forward_partials_->as<float>();
    const bool trains = pass == Pass::training;
    int count = 0;
    run(
        "conv_stem_pool", image_bytes() + (trains ? bytes() : 0) + pooled_bytes() + argmax_bytes(),
        [&] {
          count = conv_stem_pool(spec_.x->data(), context_.weights.compute(spec_.layer.weight),
                                 parameters(), trains ? z_->data() : nullptr, peak_->data(),
                                 argmax(), partials, on());
        },
        spec_.layer.conv.flop());
    if (!trains)
      return running_statistics(shape().c, parameters(), vectors(), context_.cuda_stream);
    run("finish_conv_stem_pool", static_cast<double>(forward_partials_->bytes()),
        [&] { finish_conv_stem_pool(partials, count, parameters(), vectors(), on()); });
  }

  const Slot* floats(const char* name, std::size_t count, int moment) const {
    return context_.scratch(name, count * sizeof(float), moment);
  }
  template <class Body>
  void run(const char* kernel, double bytes, Body&& body, double flop = 0) const {
    context_.log.run({kernel, spec_.layer.weight, bytes, flop}, body);
  }
  ActivationShape shape() const { return spec_.layer.conv.y(); }
  Launch on() const { return context_.on(shape()); }
  ActivationShape y_shape() const { return pooled(shape()); }
  NormParameters parameters() const { return context_.parameters_of(spec_.layer); }
  NormVectors vectors() const {
    return convolution_ ? convolution_->vectors()
                        : NormVectors::in(vectors_->as<float>(), shape().c);
  }
  void* dsum() const { return spec_.dy.first->data(); }
  std::uint8_t* argmax() const { return argmax_->as<std::uint8_t>(); }
  double image_bytes() const { return context_.bytes_of(spec_.layer.conv.x); }
  double bytes() const { return context_.bytes_of(shape()); }
  double pooled_bytes() const { return static_cast<double>(peak_->bytes()); }
  double argmax_bytes() const { return static_cast<double>(argmax_->bytes()); }

  GpuContext& context_;
  StemSpec spec_;
  const Slot *argmax_, *peak_, *sums_;
  // with cuDNN's convolution
  const Slot* dz_ = nullptr;
  std::unique_ptr<NormedConvolution> convolution_;
  // with our own
  const Slot *z_ = nullptr, *vectors_ = nullptr;
  const Slot *forward_partials_ = nullptr, *backward_partials_ = nullptr;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_stem(GpuContext& context, const StemSpec& spec) {
  return std::make_unique<GpuStem>(context, spec);
}

}  // namespace shakedown::gpu
