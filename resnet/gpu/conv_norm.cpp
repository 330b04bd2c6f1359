#include <vector>

#include "resnet/gpu/convolution.hpp"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {
namespace {

class GpuConvNorm final : public NetworkUnit, public FusableReduction {
 public:
  GpuConvNorm(GpuContext& context, const ConvNormSpec& spec) : context_(context), spec_(spec) {
    const ActivationShape y = spec.layer.conv.y();
    const int backward = spec.when.backward;
    dz_ = context.scratch("dz", y.count() * size_of(context.type), backward);
    partials_ = context.plan.reserve("sums", reduction_scratch(y, context.type, 2) * sizeof(float),
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
                                       spec_.dy->data(), partials_->as<float>(), on());
    });
  }

  const Slot* output_sums() override {
    const auto channels = static_cast<std::size_t>(spec_.layer.conv.k);
    const Moments when = spec_.when;
    output_partials_ = context_.scratch(
        "output sums", reduction_scratch(spec_.layer.conv.y(), context_.type, 1) * sizeof(float),
        when.forward);
    return output_sums_ = context_.saved("output sum", channels * sizeof(float), when);
  }

  void run_unfused() override {
    log("normalise_relu_backward", 2, [&] {
      count_ = normalise_relu_backward(spec_.dy->data(), convolution_->z(), convolution_->vectors(),
                                       partials_->as<float>(), on());
    });
  }

  void run_fused(const GradientProduct& product, const Work& convolution) override {
    Work work = convolution;
    work.kernel = "normalise_conv_relu_backward";
    work.bytes +=
        2 * convolution_->bytes() * product.depth / convolution_->shape().c + convolution_->bytes();
    context_.log.run(work, [&] {
      count_ = normalise_conv_relu_backward(product, convolution_->z(), convolution_->vectors(),
                                            spec_.dy->data(), partials_->as<float>(), on());
    });
  }

  void backward() override {
    if (!convolution_runs) run_unfused();
    const AddedNorm norm = convolution_->norm();
    const double bytes = 2.0 * count_ * convolution_->shape().c * sizeof(float);
    context_.run("finish_normalise_relu_backward", convolution_->weight(), bytes, [&] {
      finish_norm_gradients(partials_->as<float>(), count_, {&norm, 1}, nullptr, on());
    });
    log("normalise_relu_apply", 3, [&] {
      normalise_apply(spec_.dy->data(), norm.z, norm.vectors, /*relu=*/true, dz_->data(), on());
    });
    convolution_->backward();
  }

 private:
  void normalise_to(const Slot& y) const {
    log("normalise_relu", 2,
        [&] { normalise_relu(convolution_->z(), convolution_->vectors(), y.data(), on()); });
  }

  void normalise_and_sum() const {
    int count = 0;
    log("normalise_relu_sums", 2, [&] {
      count = normalise_relu_sums(convolution_->z(), convolution_->vectors(), spec_.y->data(),
                                  output_partials_->as<float>(), on());
    });
    context_.run("sum_partials", convolution_->weight(),
                 static_cast<double>(count) * convolution_->shape().c * sizeof(float), [&] {
                   sum_partials(output_partials_->as<float>(), count, convolution_->shape().c,
                                output_sums_->as<float>(), context_.cuda_stream);
                 });
  }

  Launch on() const { return context_.on(convolution_->shape()); }

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

class GpuConvNormAdd final : public NetworkUnit, public FusableReduction {
 public:
  GpuConvNormAdd(GpuContext& context, const ConvNormAddSpec& spec)
      : context_(context), spec_(spec), dsum_(spec.dy.first) {
    const ActivationShape y = spec.layer.conv.y();
    const std::size_t bytes = y.count() * size_of(context.type);
    const Moments when = spec.when;
    mask_ = context.saved("mask", gpu::mask_bytes(y, context.type), when);
    partials_ = context.plan.reserve("sums", reduction_scratch(y, context.type, 3) * sizeof(float),
                                     when.backward - 1, when.backward);
    FusableReduction* const inner = context.reduction_over(spec.dx);
    const bool uses_gram = GramConvolution::replaces(context, spec.layer.conv, inner);
    const Slot* dz = nullptr;  // of one norm after the other
    if (!uses_gram || spec.shortcut_layer) dz = context.scratch("dz", bytes, when.backward);
    if (uses_gram)
      gram_ = std::make_unique<GramConvolution>(
          context, spec.layer, when,
          GramConvolution::Tensors{spec.x, spec.x_in_backward(), dsum_, nullptr, spec.dx}, *inner);
    else
      main_ = std::make_unique<NormedConvolution>(
          context, spec.layer, when,
          NormedConvolution::Tensors{spec.x, spec.x_in_backward(), dsum_, dz, spec.dx});
    if (spec.shortcut_layer)
      projection_ = std::make_unique<NormedConvolution>(
          context, *spec.shortcut_layer, when,
          NormedConvolution::Tensors{spec.shortcut, spec.shortcut, dsum_, dz, spec.dshortcut,
                                     spec.dshortcut_stride > 1});
    context.reductions.emplace(dsum_, this);
  }

  void bind() override {
    if (gram_)
      gram_->bind();
    else
      main_->bind();
    if (projection_) projection_->bind();
  }

  void forward(Pass pass) override {
    if (gram_)
      gram_->forward(pass);
    else
      main_->forward(pass);
    BlockEnd end{gram_ ? gram_->vectors() : main_->vectors(), spec_.shortcut->data(), std::nullopt,
                 spec_.y->data(), mask_->as<std::uint8_t>()};
    if (projection_) {
      projection_->forward(pass);
      end.shortcut = projection_->z();
      end.shortcut_norm = projection_->vectors();
    }
    end_block(end);
  }

  std::string name() const override {
    return std::string("end of a block") + (projection_ ? " with projection" : "") +
           (gram_ ? ", its norm through the Gram matrix" : "");
  }

  bool can_fuse(const ConvShape& conv, bool through_norm) const override {
    return spec_.dy.second != nullptr && !through_norm &&
           has_conv_add_relu_backward(context_.type, conv.k, conv.x.c);
  }

  void randomise_inputs() const override {
    if (spec_.dy.second != nullptr) context_.randomise(*spec_.dy.second, context_.type);
    context_.randomise(*mask_, context_.type);  // bits, half of which are set
    if (main_) main_->randomise_z();
    if (projection_) projection_->randomise_z();
  }

  void run_unfused() override {
    const CentredTensors z = centred();
    log("add_relu_backward", (2 + z.count) * bytes() + second_bytes() + mask_bytes(), [&] {
      count_ = add_relu_backward(dsum_->data(), second(), mask_->as<std::uint8_t>(), z,
                                 partials_->as<float>(), on());
    });
  }

  void run_fused(const GradientProduct& product, const Work& convolution) override {
    const CentredTensors z = centred();
    Work work = convolution;
    work.kernel = "conv_add_relu_backward";
    work.bytes += z.count * bytes() + second_bytes() + mask_bytes();
    const auto* const mask = mask_->as<std::uint8_t>();
    const bool wide = z.count == 0 && second().stride == 1 &&
                      has_wide_conv_add_relu_backward(context_.type, product.depth, shape().c);
    context_.log.run(work, [&] {
      count_ = wide ? wide_conv_add_relu_backward(product, second().data, mask, dsum_->data(),
                                                  partials_->as<float>(), on())
                    : conv_add_relu_backward(product, second(), mask, dsum_->data(), z,
                                             partials_->as<float>(), on());
    });
  }

  void backward() override {
    if (!convolution_runs) run_unfused();
    finish_backward();
    if (projection_) projection_->backward();
  }

 private:
  /// Normalises z, adds the shortcut, applies the ReLU.
  void end_block(const BlockEnd& end) const {
    if (!gram_)
      return log("normalise_add_relu", 3 * bytes() + mask_bytes(),
                 [&] { normalise_add_relu(main_->z(), end, on()); });
    const ConvShape& conv = spec_.layer.conv;
    const double weights = static_cast<double>(conv.weight_count() * size_of(context_.type));
    const Work work{"conv_normalise_add_relu", spec_.layer.weight,
                    context_.bytes_of(conv.x) + weights + 2 * bytes() + mask_bytes(), conv.flop()};
    const bool wide = has_wide_conv_normalise_add_relu(context_.type, conv.x.c, conv.k);
    const auto run = wide ? wide_conv_normalise_add_relu : conv_normalise_add_relu;
    context_.log.run(work, [&] { run(gram_->z(), end, on()); });
  }

  /// What is after the reduction, of the main path.
  void finish_backward() const {
    const std::vector<AddedNorm> norms = this->norms();
    const double bytes =
        (1.0 + static_cast<double>(norms.size())) * count_ * shape().c * sizeof(float);
    log("finish_add_relu_backward", bytes, [&] {
      finish_norm_gradients(partials_->as<float>(), count_, norms, gram_ ? gram_->sum() : nullptr,
                            on());
    });
    if (gram_)
      gram_->backward();
    else
      main_->backward();
  }

  /// The norms that end the block, of which z is in memory.
  std::vector<AddedNorm> norms() const {
    std::vector<AddedNorm> all;
    for (const NormedConvolution* of : {main_.get(), projection_.get()})
      if (of != nullptr) all.push_back(of->norm());
    return all;
  }
  CentredTensors centred() const { return CentredTensors::of(norms()); }

  template <class Body>
  void log(const char* kernel, double bytes, Body&& body) const {
    context_.run(kernel, spec_.layer.weight, bytes, body);
  }
  ActivationShape shape() const { return spec_.layer.conv.y(); }
  Launch on() const { return context_.on(shape()); }
  double bytes() const { return context_.bytes_of(shape()); }
  double mask_bytes() const { return static_cast<double>(mask_->bytes()); }

  Addend second() const {
    const Slot* slot = spec_.dy.second;
    return {slot != nullptr ? slot->data() : nullptr, spec_.dy.second_stride};
  }
  double second_bytes() const {
    return spec_.dy.second != nullptr ? static_cast<double>(spec_.dy.second->bytes()) : 0;
  }

  GpuContext& context_;
  ConvNormAddSpec spec_;
  const Slot* mask_;
  const Slot* partials_;
  const Slot* dsum_;  // in the place of the gradient's first addend; the identity hands it on
  int count_ = 0;     // of partial sums
  std::unique_ptr<NormedConvolution> main_;  // the main path, or
  std::unique_ptr<GramConvolution> gram_;    // the same without z
  std::unique_ptr<NormedConvolution> projection_;
};

}  // namespace

std::unique_ptr<NetworkUnit> make_conv_norm(GpuContext& context, const ConvNormSpec& spec) {
  return std::make_unique<GpuConvNorm>(context, spec);
}

std::unique_ptr<NetworkUnit> make_conv_norm_add(GpuContext& context, const ConvNormAddSpec& spec) {
  return std::make_unique<GpuConvNormAdd>(context, spec);
}

}  // namespace shakedown::gpu
