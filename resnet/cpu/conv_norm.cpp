#include "resnet/cpu/conv_norm.hpp"

#include <algorithm>

namespace shakedown::cpu {

NormedConvolution::NormedConvolution(CpuContext& context, const NormedConv& layer, Moments when,
                                     const Desc& x_desc, const Slot* x, const Slot* out,
                                     const Slot* dx)
    : context_(context),
      layer_(layer),
      name_(context.table.parameters().at(static_cast<std::size_t>(layer.weight)).name),
      x_desc_(x_desc),
      y_desc_(activation_desc(layer.conv.y(), context.tag)),
      x_(x),
      out_(out),
      dx_(dx) {
  const dnnl::engine& engine = context.engine;
  conv_forward_ = cpu::conv_forward(engine, layer.conv, x_desc_, y_desc_);
  if (dx_ != nullptr)
    conv_backward_data_ =
        cpu::conv_backward_data(engine, layer.conv, x_desc_, y_desc_, conv_forward_);
  conv_backward_weights_ =
      cpu::conv_backward_weights(engine, layer.conv, x_desc_, y_desc_, conv_forward_);
  norm_training_ = cpu::norm_forward(engine, y_desc_, NormMode::training);
  norm_evaluation_ = cpu::norm_forward(engine, y_desc_, NormMode::evaluation);
  norm_backward_ = cpu::norm_backward(engine, y_desc_, norm_training_);

  // The flat buffers keep weights in the layout of the forward pass, unless it pads.
  const Desc plain = weight_desc(layer.conv, Tag::oihw);
  const Desc liked = conv_forward_.weights_desc();
  stored_ = liked.get_size() == plain.get_size() ? liked : plain;
  context.weight_layouts[name_] = stored_;

  MemoryPlan& plan = context.plan;
  auto saved = [&](const char* what, std::size_t bytes) {
    return plan.reserve(name_ + " " + what, bytes, when.forward, when.backward);
  };
  auto scratch = [&](const char* what, std::size_t bytes, int moment) {
    return plan.reserve(name_ + " " + what, bytes, moment, moment);
  };
  const std::size_t channel_bytes = sizeof(float) * static_cast<std::size_t>(layer.conv.k);
  z_ = saved("output", y_desc_.get_size());
  mean_ = saved("mean", channel_bytes);
  variance_ = saved("variance", channel_bytes);
  dz_ = scratch("dz", y_desc_.get_size(), when.backward);

  // Where a primitive prefers another layout than the stored one, a copy is made for it.
  auto copy_bytes = [&](const Desc& wanted) {
    return wanted == stored_ ? std::size_t{0} : wanted.get_size();
  };
  weights_scratch_ = scratch("weights", copy_bytes(liked), when.forward);
  std::size_t backward_copy = copy_bytes(conv_backward_weights_.diff_weights_desc());
  if (dx_ != nullptr)
    backward_copy = std::max(backward_copy, copy_bytes(conv_backward_data_.weights_desc()));
  gradient_scratch_ = scratch("weights", backward_copy, when.backward);
  forward_scratch_ = scratch("scratch",
                             std::max({conv_forward_.scratchpad_desc().get_size(),
                                       norm_training_.scratchpad_desc().get_size(),
                                       norm_evaluation_.scratchpad_desc().get_size()}),
                             when.forward);
  std::size_t backward_bytes = std::max(conv_backward_weights_.scratchpad_desc().get_size(),
                                        norm_backward_.scratchpad_desc().get_size());
  if (dx_ != nullptr)
    backward_bytes = std::max(backward_bytes, conv_backward_data_.scratchpad_desc().get_size());
  backward_scratch_ = scratch("scratch", backward_bytes, when.backward);
}

void NormedConvolution::bind() {
  bind_forward();
  bind_backward();
}

void NormedConvolution::bind_forward() {
  const Weights& weights = context_.weights;
  const dnnl::memory x = context_.memory(x_desc_, x_);
  const dnnl::memory z = context_.memory(y_desc_, z_);
  const dnnl::memory out = context_.memory(y_desc_, out_);
  const Desc channels = channel_desc(layer_.conv.k);
  const dnnl::memory gamma = context_.memory(channels, weights.vector(layer_.gamma));
  const dnnl::memory beta = context_.memory(channels, weights.vector(layer_.beta));

  dnnl::memory w = context_.memory(stored_, weights.compute(layer_.weight));
  if (stored_ != conv_forward_.weights_desc()) {
    const dnnl::memory liked = context_.memory(conv_forward_.weights_desc(), weights_scratch_);
    weights_to_forward_ = {dnnl::reorder(w, liked), {{DNNL_ARG_FROM, w}, {DNNL_ARG_TO, liked}}};
    w = liked;
  }
  convolve_ = {
      dnnl::convolution_forward(conv_forward_),
      {{DNNL_ARG_SRC, x},
       {DNNL_ARG_WEIGHTS, w},
       {DNNL_ARG_DST, z},
       {DNNL_ARG_SCRATCHPAD, context_.memory(conv_forward_.scratchpad_desc(), forward_scratch_)}}};
  normalise_training_ = {
      dnnl::batch_normalization_forward(norm_training_),
      {{DNNL_ARG_SRC, z},
       {DNNL_ARG_DST, out},
       {DNNL_ARG_SCALE, gamma},
       {DNNL_ARG_SHIFT, beta},
       {DNNL_ARG_MEAN, context_.memory(norm_training_.mean_desc(), mean_)},
       {DNNL_ARG_VARIANCE, context_.memory(norm_training_.variance_desc(), variance_)},
       {DNNL_ARG_SCRATCHPAD, context_.memory(norm_training_.scratchpad_desc(), forward_scratch_)}}};
  normalise_evaluation_ = {
      dnnl::batch_normalization_forward(norm_evaluation_),
      {{DNNL_ARG_SRC, z},
       {DNNL_ARG_DST, out},
       {DNNL_ARG_SCALE, gamma},
       {DNNL_ARG_SHIFT, beta},
       {DNNL_ARG_MEAN, context_.memory(channels, weights.running_mean(layer_.statistics))},
       {DNNL_ARG_VARIANCE, context_.memory(channels, weights.running_variance(layer_.statistics))},
       {DNNL_ARG_SCRATCHPAD,
        context_.memory(norm_evaluation_.scratchpad_desc(), forward_scratch_)}}};
}

void NormedConvolution::bind_backward() {
  const Weights& weights = context_.weights;
  const Desc channels = channel_desc(layer_.conv.k);
  const dnnl::memory dz = context_.memory(y_desc_, dz_);
  dout_ = context_.memory(y_desc_, dz_);  // the data handle is set at each backward
  std::unordered_map<int, dnnl::memory> norm{
      {DNNL_ARG_SRC, context_.memory(y_desc_, z_)},
      {DNNL_ARG_MEAN, context_.memory(norm_training_.mean_desc(), mean_)},
      {DNNL_ARG_VARIANCE, context_.memory(norm_training_.variance_desc(), variance_)},
      {DNNL_ARG_SCALE, context_.memory(channels, weights.vector(layer_.gamma))},
      {DNNL_ARG_DIFF_DST, dout_},
      {DNNL_ARG_DIFF_SRC, dz},
      {DNNL_ARG_DIFF_SCALE, context_.memory(channels, weights.gradient(layer_.gamma))},
      {DNNL_ARG_DIFF_SHIFT, context_.memory(channels, weights.gradient(layer_.beta))},
      {DNNL_ARG_SCRATCHPAD, context_.memory(norm_backward_.scratchpad_desc(), backward_scratch_)}};
  if (kNormBackwardTakesShift)
    norm.insert({DNNL_ARG_SHIFT, context_.memory(channels, weights.vector(layer_.beta))});
  normalise_backward_ = {dnnl::batch_normalization_backward(norm_backward_), std::move(norm)};

  // The gradient scratch holds the weights in the layout of the data gradient and then, after it,
  // the gradient in the layout of its primitive.
  if (dx_ != nullptr) {
    dnnl::memory w = context_.memory(stored_, weights.compute(layer_.weight));
    if (stored_ != conv_backward_data_.weights_desc()) {
      const dnnl::memory liked =
          context_.memory(conv_backward_data_.weights_desc(), gradient_scratch_);
      weights_to_backward_ = {dnnl::reorder(w, liked), {{DNNL_ARG_FROM, w}, {DNNL_ARG_TO, liked}}};
      w = liked;
    }
    convolve_backward_data_ = {
        dnnl::convolution_backward_data(conv_backward_data_),
        {{DNNL_ARG_DIFF_DST, dz},
         {DNNL_ARG_WEIGHTS, w},
         {DNNL_ARG_DIFF_SRC, context_.memory(x_desc_, dx_)},
         {DNNL_ARG_SCRATCHPAD,
          context_.memory(conv_backward_data_.scratchpad_desc(), backward_scratch_)}}};
  }
  const dnnl::memory stored = context_.memory(stored_, weights.gradient(layer_.weight));
  dnnl::memory dw = stored;
  if (stored_ != conv_backward_weights_.diff_weights_desc()) {
    dw = context_.memory(conv_backward_weights_.diff_weights_desc(), gradient_scratch_);
    gradient_to_stored_ = {dnnl::reorder(dw, stored), {{DNNL_ARG_FROM, dw}, {DNNL_ARG_TO, stored}}};
  }
  convolve_backward_weights_ = {
      dnnl::convolution_backward_weights(conv_backward_weights_),
      {{DNNL_ARG_SRC, context_.memory(x_desc_, x_)},
       {DNNL_ARG_DIFF_DST, dz},
       {DNNL_ARG_DIFF_WEIGHTS, dw},
       {DNNL_ARG_SCRATCHPAD,
        context_.memory(conv_backward_weights_.scratchpad_desc(), backward_scratch_)}}};
}

void NormedConvolution::forward(Pass pass) {
  reorder_weights(weights_to_forward_);
  convolve("conv_forward", convolve_);
  if (pass == Pass::evaluation) {
    normalise_evaluation_.run(context_.dnnl_stream);
    return;
  }
  context_.run("batch_norm", layer_.weight, 2 * bytes_of(y_desc_), [&] {
    normalise_training_.run(context_.dnnl_stream);
    update_running_statistics();
  });
}

void NormedConvolution::backward(const Slot* dout) {
  dout_.set_data_handle(dout->data());
  context_.run("batch_norm_backward", layer_.weight, 3 * bytes_of(y_desc_), normalise_backward_);
  if (dx_ != nullptr) {
    reorder_weights(weights_to_backward_);
    convolve("conv_backward_data", convolve_backward_data_);
  }
  convolve("conv_backward_weights", convolve_backward_weights_);
  reorder_weights(gradient_to_stored_);
}

void NormedConvolution::convolve(const char* kernel, const Operation& operation) const {
  const ConvShape& conv = layer_.conv;
  const double elements = static_cast<double>(conv.x.count()) +
                          static_cast<double>(conv.y().count()) +
                          static_cast<double>(conv.weight_count());
  context_.log.run({kernel, layer_.weight, sizeof(float) * elements, conv.flop()},
                   [&] { operation.run(context_.dnnl_stream); });
}

void NormedConvolution::reorder_weights(const Operation& operation) const {
  if (operation.empty()) return;
  context_.run("reorder_weights", layer_.weight, 2 * bytes_of(stored_), operation);
}

void NormedConvolution::update_running_statistics() const {
  const ActivationShape y = layer_.conv.y();
  const double n = static_cast<double>(y.count()) / y.c;
  const auto unbias = static_cast<float>(n / (n - 1));
  float* mean = context_.weights.running_mean(layer_.statistics);
  float* variance = context_.weights.running_variance(layer_.statistics);
  for (int c = 0; c < y.c; ++c) {
    mean[c] += kNormMomentum * (mean_->as<float>()[c] - mean[c]);
    variance[c] += kNormMomentum * (variance_->as<float>()[c] * unbias - variance[c]);
  }
}

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
