#include "resnet/cpu/normed_convolution.hpp"

namespace shakedown::cpu {
namespace {

/// y = relu(y); the mask is 1 where the gradient passes.
void relu_with_mask(float* y, std::uint8_t* mask, std::size_t count) {
#pragma omp parallel for simd schedule(static)
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t passes = relu_stops(y[i]) ? 0 : 1;  // as wide as y: vectorised
    mask[i] = static_cast<std::uint8_t>(passes);
    y[i] = relu(y[i]);
  }
}

class CpuConvNorm final : public NetworkUnit {
 public:
  CpuConvNorm(CpuContext& context, const ConvNormSpec& spec)
      : context_(context),
        spec_(spec),
        count_(spec.layer.conv.y().count()),
        mask_(context.plan.reserve("mask", count_, spec.when.forward, spec.when.backward)),
        convolution_(context, spec.layer, spec.when,
                     activation_desc(spec.layer.conv.x, context.tag), spec.x, spec.y, spec.dx) {}

  void bind() override { convolution_.bind(); }

  void forward(Pass pass) override {
    convolution_.forward(pass);
    auto* y = spec_.y->as<float>();
    auto* mask = mask_->as<std::uint8_t>();
    run("relu", [&] { relu_with_mask(y, mask, count_); });
  }

  void backward() override {
    auto* dy = spec_.dy->as<float>();
    const auto* mask = mask_->as<std::uint8_t>();
    run("relu_backward", [&] {
#pragma omp parallel for simd schedule(static)
      for (std::size_t i = 0; i < count_; ++i) dy[i] = mask[i] != 0 ? dy[i] : 0.0F;
    });
    convolution_.backward(spec_.dy);
  }

 private:
  /// A pass over a tensor, in its place, and the mask.
  template <class Body>
  void run(const char* kernel, Body&& body) const {
    context_.run(kernel, convolution_.weight(),
                 static_cast<double>(count_) * (2 * sizeof(float) + 1), body);
  }

  CpuContext& context_;
  ConvNormSpec spec_;
  std::size_t count_;
  const Slot* mask_;  // a byte an element: whether the gradient passes
  NormedConvolution convolution_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_conv_norm(CpuContext& context, const ConvNormSpec& spec) {
  return std::make_unique<CpuConvNorm>(context, spec);
}

}  // namespace shakedown::cpu
