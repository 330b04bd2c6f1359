#include "resnet/gpu/normed_convolution.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNorm final : public NetworkUnit, public FusableReduction {
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
    if (output_sums_ != nullptr && pass == Pass::training)
      normalise_and_sum();
    else
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

  bool can_use_gram(const ConvShape& conv) const override {
    return has_gram_conv_relu_backward(context_.type, conv.x.c, conv.k);
  }

  void run_gram(const GramMatrices& matrices, const void* y, const void* g) override {
    // y, z, dy, and what dy had or g
    const bool in_two = gram_in_two(matrices.channels);
    const double columns =
        3.0 * matrices.channels + (in_two ? matrices.channels : matrices.filters);
    const double flop = 2.0 * static_cast<double>(convolution_->shape().count()) *
                        (matrices.channels + (in_two ? 0 : matrices.filters));
    const Work work{"gram_conv_relu_backward", convolution_->weight(),
                    convolution_->bytes() / matrices.channels * columns, flop};
    context_.log.run(work, [&] {
      count_ = gram_conv_relu_backward(matrices, y, g, convolution_->z(), convolution_->vectors(),
                                       spec_.dy->data(), convolution_->shape(), context_.type,
                                       partials_->as<float>(), context_.cuda_stream);
    });
  }

  const Slot* output_sums() override {
    const auto channels = static_cast<std::size_t>(spec_.layer.conv.k);
    const Moments when = spec_.when;
    output_partials_ = context_.plan.reserve(
        "output sums", reduction_scratch(spec_.layer.conv.y(), context_.type, 1) * sizeof(float),
        when.forward, when.forward);
    return output_sums_ = context_.plan.reserve("output sum", channels * sizeof(float),
                                                when.forward, when.backward);
  }

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

  void normalise_and_sum() const {
    int count = 0;
    log("normalise_relu_sums", 2, [&] {
      count = normalise_relu_sums(convolution_->z(), convolution_->vectors(), spec_.y->data(),
                                  convolution_->shape(), context_.type,
                                  output_partials_->as<float>(), context_.cuda_stream);
    });
    context_.run("sum_partials", convolution_->weight(),
                 static_cast<double>(count) * convolution_->shape().c * sizeof(float), [&] {
                   sum_partials(output_partials_->as<float>(), count, convolution_->shape().c,
                                output_sums_->as<float>(), context_.cuda_stream);
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
  const Slot* output_sums_ = nullptr;
  const Slot* output_partials_ = nullptr;
  int count_ = 0;  // of partial sums
  std::unique_ptr<NormedConvolution> convolution_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_conv_norm(GpuContext& context, const ConvNormSpec& spec) {
  return std::make_unique<GpuConvNorm>(context, spec);
}

}  // namespace shakedown::gpu
