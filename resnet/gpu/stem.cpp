#include "resnet/gpu/normed_convolution.hpp"

namespace shakedown::gpu {
namespace {

class GpuStem final : public Unit {
 public:
  GpuStem(GpuContext& context, const StemSpec& spec) : context_(context), spec_(spec) {
    ENSURE(spec.dy.second_stride == 1, "the stem's gradient: whole");
    MemoryPlan& plan = context.plan;
    const ActivationShape z = spec.layer.conv.y();
    const Moments when = spec.when;
    argmax_ = plan.reserve("stem argmax", pooled(z).count(), when.forward, when.backward);
    peak_ = plan.reserve("stem peak", pooled(z).count() * size_of(context.type), when.forward,
                         when.backward);
    dz_ = plan.reserve("stem dz", z.count() * size_of(context.type), when.backward, when.backward);
    sums_ = plan.reserve("stem sums", reduction_scratch(pooled(z), context.type, 2) * sizeof(float),
                         when.backward, when.backward);
    convolution_ = std::make_unique<NormedConvolution>(
        context, spec.layer, when,
        NormedConvolution::Tensors{spec.x, spec.x, nullptr, dz_, nullptr});
  }

  void bind() override { convolution_->bind(); }

  void forward(Pass pass) override {
    convolution_->forward(pass);
    run("stem_pool", convolution_->bytes() + 2 * pooled_bytes() + argmax_bytes(), [&] {
      stem_pool(convolution_->z(), convolution_->vectors(), spec_.y->data(), peak_->data(),
                argmax_->as<std::uint8_t>(), convolution_->shape(), context_.type,
                context_.cuda_stream);
    });
  }

  void backward() override {
    const void* dy_a = spec_.dy.first->data();
    const void* dy_b = spec_.dy.second != nullptr ? spec_.dy.second->data() : nullptr;
    const double dy_bytes = (dy_b != nullptr ? 2 : 1) * pooled_bytes() + argmax_bytes();
    const auto* argmax = argmax_->as<std::uint8_t>();
    const NormVectors norm = convolution_->vectors();
    run("stem_pool_backward", dy_bytes + pooled_bytes(), [&] {
      stem_pool_backward(dy_a, dy_b, argmax, peak_->data(), convolution_->shape(), context_.type,
                         convolution_->parameters(), norm, sums_->as<float>(),
                         context_.cuda_stream);
    });
    run("stem_pool_apply", dy_bytes + 2 * convolution_->bytes(), [&] {
      stem_pool_apply(dy_a, dy_b, argmax, convolution_->z(), norm, dz_->data(),
                      convolution_->shape(), context_.type, context_.cuda_stream);
    });
    convolution_->backward();
  }

 private:
  template <class Body>
  void run(const char* kernel, double bytes, Body&& body) const {
    context_.run(kernel, convolution_->weight(), bytes, body);
  }
  double pooled_bytes() const { return static_cast<double>(peak_->bytes()); }
  double argmax_bytes() const { return static_cast<double>(argmax_->bytes()); }

  GpuContext& context_;
  StemSpec spec_;
  const Slot* argmax_;
  const Slot* peak_;
  const Slot* dz_;
  const Slot* sums_;
  std::unique_ptr<NormedConvolution> convolution_;
};

}  // namespace

std::unique_ptr<Unit> make_stem(GpuContext& context, const StemSpec& spec) {
  return std::make_unique<GpuStem>(context, spec);
}

}  // namespace shakedown::gpu
