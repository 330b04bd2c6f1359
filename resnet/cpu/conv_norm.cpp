#include "resnet/cpu/units.hpp"

namespace shakedown::cpu {
namespace {

class CpuConvNorm final : public Unit {
 public:
  CpuConvNorm(Shared& shared, const ConvNormSpec& spec)
      : dy_(spec.dy),
        convolution_(shared, spec.layer, spec.when, true,
                     activation_desc(spec.layer.conv.x, shared.tag), spec.x, spec.y, spec.dx) {}

  void bind() override { convolution_.bind(); }
  void forward(Pass pass) override { convolution_.forward(pass); }
  void backward() override { convolution_.backward(dy_); }

 private:
  const Slot* dy_;
  NormedConvolution convolution_;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm(Shared& shared, const ConvNormSpec& spec) {
  return std::make_unique<CpuConvNorm>(shared, spec);
}

}  // namespace shakedown::cpu
