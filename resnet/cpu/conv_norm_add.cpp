#include "resnet/cpu/normed_convolution.hpp"

namespace shakedown::cpu {
namespace {

class CpuConvNormAdd final : public NetworkUnit {
 public:
  CpuConvNormAdd(CpuContext& context, const ConvNormAddSpec& spec)
      : context_(context), spec_(spec), count_(spec.layer.conv.y().count()) {
    MemoryPlan& plan = context.plan;
    const Moments when = spec.when;
    const std::size_t bytes = count_ * sizeof(float);
    main_ = std::make_unique<NormedConvolution>(context, spec.layer, when,
                                                activation_desc(spec.layer.conv.x, context.tag),
                                                spec.x, spec.y, spec.dx);
    if (spec.shortcut_layer) {
      branch_ = plan.reserve("shortcut", bytes, when.forward, when.forward);
      projection_ = std::make_unique<NormedConvolution>(
          context, *spec.shortcut_layer, when,
          activation_desc(spec.shortcut_layer->conv.x, context.tag), spec.shortcut, branch_,
          spec.dshortcut);
    } else {
      branch_ = spec.shortcut;
    }
  }

  void bind() override {
    main_->bind();
    if (projection_) projection_->bind();
  }

  void forward(Pass pass) override {
    main_->forward(pass);
    if (projection_) projection_->forward(pass);
    float* y = spec_.y->as<float>();
    const float* s = branch_->as<float>();
    run("add_relu", 3, [&] {
#pragma omp parallel for simd schedule(static)
      for (std::size_t i = 0; i < count_; ++i) y[i] = relu(y[i] + s[i]);
    });
  }

  void backward() override {
    const float* y = spec_.y->as<float>();
    const Slot* const dsum_slot = spec_.dy.first;  // in its place; the identity passes it on
    float* dsum = dsum_slot->as<float>();
    const float* b = spec_.dy.second ? spec_.dy.second->as<float>() : nullptr;
    const auto stop = [&](auto gradient) {
#pragma omp parallel for simd schedule(static)
      for (std::size_t i = 0; i < count_; ++i) {
        const float g = gradient(i);
        dsum[i] = relu_stops(y[i]) ? 0.0F : g;
      }
    };
    run("relu_add_backward", b == nullptr ? 3 : 4, [&] {
      if (b == nullptr)
        stop([dsum](std::size_t i) { return dsum[i]; });
      else
        stop([dsum, b](std::size_t i) { return dsum[i] + b[i]; });
    });
    main_->backward(dsum_slot);
    if (projection_) projection_->backward(dsum_slot);
  }

 private:
  /// A pass over this many tensors.
  template <class Body>
  void run(const char* kernel, int tensors, Body&& body) const {
    context_.run(kernel, main_->weight(), tensors * static_cast<double>(count_ * sizeof(float)),
                 body);
  }

  CpuContext& context_;
  ConvNormAddSpec spec_;
  std::size_t count_;
  const Slot* branch_;
  std::unique_ptr<NormedConvolution> main_;
  std::unique_ptr<NormedConvolution> projection_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_conv_norm_add(CpuContext& context, const ConvNormAddSpec& spec) {
  return std::make_unique<CpuConvNormAdd>(context, spec);
}

}  // namespace shakedown::cpu
