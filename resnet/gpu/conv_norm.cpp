#include "resnet/gpu/units.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNorm final : public Unit {
 public:
  GpuConvNorm(Shared& shared, const ConvNormSpec& spec) : shared_(shared), spec_(spec) {
    MemoryPlan& plan = shared.context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const int backward = spec.when.backward;
    dz_ = plan.reserve("dz", y.count() * size_of(shared.type), backward, backward);
    sums_ = plan.reserve("sums", reduction_scratch(y, shared.type, 2) * sizeof(float), backward,
                         backward);
    convolution_ = std::make_unique<NormedConvolution>(shared, spec.layer, spec.when, spec.x,
                                                       spec.x_in_backward(), dz_, spec.dx);
  }

  void bind() override { convolution_->bind(); }

  void forward(Pass pass) override {
    convolution_->forward(pass);
    normalise_to(*spec_.y);
  }

  void rebuild() override {
    if (spec_.rebuilt_y != nullptr) normalise_to(*spec_.rebuilt_y);
  }

  void backward() override {
    const NormVectors norm = convolution_->vectors();
    run("normalise_relu_backward", 2, [&] {
      normalise_relu_backward(spec_.dy->data(), convolution_->z(), convolution_->shape(),
                              shared_.type, convolution_->parameters(), norm, sums_->as<float>(),
                              shared_.stream);
    });
    run("normalise_relu_apply", 3, [&] {
      normalise_relu_apply(spec_.dy->data(), convolution_->z(), norm, dz_->data(),
                           convolution_->shape(), shared_.type, shared_.stream);
    });
    convolution_->backward();
  }

 private:
  void normalise_to(const Slot& y) const {
    run("normalise_relu", 2, [&] {
      normalise_relu(convolution_->z(), convolution_->vectors(), y.data(), convolution_->shape(),
                     shared_.type, shared_.stream);
    });
  }

  /// A kernel that moves so many tensors.
  template <class Body>
  void run(const char* kernel, int tensors, Body&& body) const {
    shared_.run(kernel, convolution_->weight(), tensors * convolution_->bytes(), body);
  }

  Shared& shared_;
  ConvNormSpec spec_;
  const Slot* dz_;
  const Slot* sums_;
  std::unique_ptr<NormedConvolution> convolution_;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm(Shared& shared, const ConvNormSpec& spec) {
  return std::make_unique<GpuConvNorm>(shared, spec);
}

}  // namespace shakedown::gpu
