#include "resnet/gpu/normed_convolution.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNorm final : public Unit, public FusableReduction {
 public:
  GpuConvNorm(GpuContext& context, const ConvNormSpec& spec) : context_(context), spec_(spec) {
    MemoryPlan& plan = context.plan;
    const ActivationShape y = spec.layer.conv.y();
    const int backward = spec.when.backward;
    dz_ = plan.reserve("dz", y.count() * size_of(context.type), backward, backward);
    partials_ = plan.reserve("sums", reduction_scratch(y, context.type, 2) * sizeof(float),
                             backward - 1, backward);
    convolution_ = std::make_unique<NormedConvolution>(
        context, spec.layer, spec.when,
        NormedConvolution::Tensors{spec.x, spec.x_in_backward(), nullptr, dz_, spec.dx});
    context.reductions.emplace(spec.dy, this);
  }

  void bind() override { convolution_->bind(); }

  void forward(Pass pass) override {
    convolution_->forward(pass);
    normalise_to(*spec_.y);
  }

  void rebuild() override {
    if (spec_.rebuilt_y != nullptr) normalise_to(*spec_.rebuilt_y);
  }

  std::string name() const override { return "inner norm"; }

  bool can_fuse(const ConvShape& conv, bool through_norm) const override {
    return through_norm && has_normalise_conv_relu_backward(context_.type, conv.k, conv.x.c);
  }

  void randomise_inputs() const override { convolution_->randomise_z(); }

  void run_unfused() override {
    log("normalise_relu_backward", 2, [&] {
      count_ = normalise_relu_backward(spec_.dy->data(), convolution_->z(), convolution_->vectors(),
                                       convolution_->shape(), context_.type, partials_->as<float>(),
                                       context_.cuda_stream);
    });
  }

  void run_fused(const GradientProduct& product, const Work& convolution) override {
    Work work = convolution;
    work.kernel = "normalise_conv_relu_backward";
    work.bytes +=
        2 * convolution_->bytes() * product.depth / convolution_->shape().c + convolution_->bytes();
    context_.log.run(work, [&] {
      count_ = normalise_conv_relu_backward(product, convolution_->z(), convolution_->vectors(),
                                            spec_.dy->data(), convolution_->shape(), context_.type,
                                            partials_->as<float>(), context_.cuda_stream);
    });
  }

  void backward() override {
    if (!convolution_runs) run_unfused();
    const NormVectors norm = convolution_->vectors();
    const double bytes = 2.0 * count_ * convolution_->shape().c * sizeof(float);
    context_.run("finish_normalise_relu_backward", convolution_->weight(), bytes, [&] {
      finish_normalise_relu_backward(partials_->as<float>(), count_, convolution_->parameters(),
                                     norm, convolution_->shape(), context_.type,
                                     context_.cuda_stream);
    });
    log("normalise_relu_apply", 3, [&] {
      normalise_relu_apply(spec_.dy->data(), convolution_->z(), norm, dz_->data(),
                           convolution_->shape(), context_.type, context_.cuda_stream);
    });
    convolution_->backward();
  }

 private:
  void normalise_to(const Slot& y) const {
    log("normalise_relu", 2, [&] {
      normalise_relu(convolution_->z(), convolution_->vectors(), y.data(), convolution_->shape(),
                     context_.type, context_.cuda_stream);
    });
  }

  /// Runs a kernel that moves this many tensors.
  template <class Body>
  void log(const char* kernel, int tensors, Body&& body) const {
    context_.run(kernel, convolution_->weight(), tensors * convolution_->bytes(), body);
  }

  GpuContext& context_;
  ConvNormSpec spec_;
  const Slot* dz_;
  const Slot* partials_;
  int count_ = 0;  // of partial sums
  std::unique_ptr<NormedConvolution> convolution_;
};

}  // namespace

std::unique_ptr<Unit> make_conv_norm(GpuContext& context, const ConvNormSpec& spec) {
  return std::make_unique<GpuConvNorm>(context, spec);
}

}  // namespace shakedown::gpu
