#include "resnet/cpu/onednn.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace shakedown::cpu {
namespace {

/// v3 (from 2023) has no operation descriptors: the same arguments, in another place. Scratchpads
/// are the caller's.
template <class Primitive, class... Values, class... Hint>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const std::tuple<Values...>& values,
                                            const Hint&... hint) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return std::apply(
      [&](const auto&... v) {
#if DNNL_VERSION_MAJOR >= 3
        return typename Primitive::primitive_desc(engine, v..., hint..., attributes);
#else
        return typename Primitive::primitive_desc(typename Primitive::desc(v...), attributes,
                                                  engine, hint...);
#endif
      },
      values);
}

/// A convolution in any direction; the weights are in the layout that the primitive prefers.
/// `hint`: the forward pass, of those back.
template <class Primitive, class... Hint>
typename Primitive::primitive_desc describe_convolution(const dnnl::engine& engine,
                                                        const ConvShape& conv, const Desc& x,
                                                        const Desc& y, const Hint&... hint) {
  const dnnl::memory::dims stride{conv.stride, conv.stride};
  const dnnl::memory::dims pad{conv.pad, conv.pad};
  const std::tuple values(dnnl::algorithm::convolution_direct, x, weight_desc(conv, Tag::any), y,
                          stride, pad, pad);
  if constexpr (sizeof...(hint) == 0)
    return describe<Primitive>(
        engine, std::tuple_cat(std::tuple(dnnl::prop_kind::forward_training), values));
  else
    return describe<Primitive>(engine, values, hint...);
}

/// A norm whose tensors have the layout x.
template <class Primitive, class... Hint>
typename Primitive::primitive_desc describe_norm(const dnnl::engine& engine, const Desc& x,
                                                 dnnl::prop_kind kind,
                                                 dnnl::normalization_flags flags,
                                                 const Hint&... hint) {
#if DNNL_VERSION_MAJOR >= 3
  const std::tuple values(x, x, kNormEpsilon, flags);
#else
  const std::tuple values(x, kNormEpsilon, flags);
#endif
  if constexpr (sizeof...(hint) == 0)
    return describe<Primitive>(engine, std::tuple_cat(std::tuple(kind), values));
  else  // one tensor more
    return describe<Primitive>(engine, std::tuple_cat(std::tuple(kind, x), values), hint...);
}

/// Nothing where both are the same memory.
Operation reorder(const dnnl::memory& from, const dnnl::memory& to) {
  if (from == to) return {};
  return {dnnl::reorder(from, to), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
}

template <class... Descs>
std::size_t scratch_bytes(const Descs&... descs) {
  return std::max({descs.scratchpad_desc().get_size()...});
}

}  // namespace

Tag preferred_activation_tag(const dnnl::engine& engine) {
  const ConvShape typical{{8, 64, 28, 28}, 64, 3, 1, 1};
  const Desc chosen = describe_convolution<dnnl::convolution_forward>(
                          engine, typical, activation_desc(typical.x, Tag::any),
                          activation_desc(typical.y(), Tag::any))
                          .dst_desc();
  for (Tag tag : std::array{Tag::nChw16c, Tag::nChw8c, Tag::nhwc})
    if (chosen == activation_desc(typical.y(), tag)) return tag;
  return Tag::nhwc;
}

NormedConvolution::NormedConvolution(CpuContext& context, const NormedConv& layer, Moments when,
                                     const Desc& x_desc, const Slot* x, const Slot* out,
                                     const Slot* dx)
    : context_(context),
      layer_(layer),
      x_desc_(x_desc),
      y_desc_(activation_desc(layer.conv.y(), context.tag)),
      x_(x),
      out_(out),
      dx_(dx) {
  const dnnl::engine& engine = context.engine;
  const ConvShape& conv = layer.conv;
  conv_forward_ = describe_convolution<dnnl::convolution_forward>(engine, conv, x_desc_, y_desc_);
  if (dx_ != nullptr)
    conv_backward_data_ = describe_convolution<dnnl::convolution_backward_data>(
        engine, conv, x_desc_, y_desc_, conv_forward_);
  conv_backward_weights_ = describe_convolution<dnnl::convolution_backward_weights>(
      engine, conv, x_desc_, y_desc_, conv_forward_);
  const dnnl::normalization_flags scale_and_shift =
      dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
  norm_training_ = describe_norm<dnnl::batch_normalization_forward>(
      engine, y_desc_, dnnl::prop_kind::forward_training, scale_and_shift);
  norm_evaluation_ = describe_norm<dnnl::batch_normalization_forward>(
      engine, y_desc_, dnnl::prop_kind::forward_inference,
      scale_and_shift | dnnl::normalization_flags::use_global_stats);
  norm_backward_ = describe_norm<dnnl::batch_normalization_backward>(
      engine, y_desc_, dnnl::prop_kind::backward, scale_and_shift, norm_training_);

  // The flat buffers keep weights in the layout of the forward pass, unless it pads.
  const std::string& name =
      context.table.parameters().at(static_cast<std::size_t>(layer.weight)).name;
  const Desc plain = weight_desc(conv, Tag::oihw);
  const Desc liked = conv_forward_.weights_desc();
  stored_ = liked.get_size() == plain.get_size() ? liked : plain;
  context.weight_layouts[name] = stored_;

  const auto reserve = [&](const char* what, std::size_t bytes, int first, int last) {
    return context.plan.reserve(name + " " + what, bytes, first, last);
  };
  const std::size_t channel_bytes = channel_desc(conv.k).get_size();
  z_ = reserve("output", y_desc_.get_size(), when.forward, when.backward);
  mean_ = reserve("mean", channel_bytes, when.forward, when.backward);
  variance_ = reserve("variance", channel_bytes, when.forward, when.backward);
  dz_ = reserve("dz", y_desc_.get_size(), when.backward, when.backward);

  // Where a primitive prefers another layout than the stored one, a copy is made for it.
  const auto copy_bytes = [&](const Desc& wanted) {
    return wanted == stored_ ? std::size_t{0} : wanted.get_size();
  };
  weights_scratch_ = reserve("weights", copy_bytes(liked), when.forward, when.forward);
  std::size_t backward_copy = copy_bytes(conv_backward_weights_.diff_weights_desc());
  std::size_t backward_bytes = scratch_bytes(conv_backward_weights_, norm_backward_);
  if (dx_ != nullptr) {
    backward_copy = std::max(backward_copy, copy_bytes(conv_backward_data_.weights_desc()));
    backward_bytes = std::max(backward_bytes, scratch_bytes(conv_backward_data_));
  }
  gradient_scratch_ = reserve("weights", backward_copy, when.backward, when.backward);
  forward_scratch_ =
      reserve("scratch", scratch_bytes(conv_forward_, norm_training_, norm_evaluation_),
              when.forward, when.forward);
  backward_scratch_ = reserve("scratch", backward_bytes, when.backward, when.backward);
}

void NormedConvolution::bind() {
  const Weights& weights = context_.weights;
  const Desc channels = channel_desc(layer_.conv.k);
  const auto vector = [&](void* at) { return context_.memory(channels, at); };
  const dnnl::memory x = context_.memory(x_desc_, x_);
  const dnnl::memory z = context_.memory(y_desc_, z_);
  const dnnl::memory out = context_.memory(y_desc_, out_);
  const dnnl::memory dz = context_.memory(y_desc_, dz_);
  const dnnl::memory gamma = vector(weights.vector(layer_.gamma));
  const dnnl::memory beta = vector(weights.vector(layer_.beta));
  const dnnl::memory mean = vector(mean_->data());
  const dnnl::memory variance = vector(variance_->data());
  const dnnl::memory stored = context_.memory(stored_, weights.compute(layer_.weight));
  const dnnl::memory stored_dw = context_.memory(stored_, weights.gradient(layer_.weight));
  // what is stored, as a primitive prefers it
  const auto in_layout = [&](const Desc& liked, const dnnl::memory& as_stored, const Slot* copy) {
    return liked == stored_ ? as_stored : context_.memory(liked, copy);
  };

  dnnl::memory w = in_layout(conv_forward_.weights_desc(), stored, weights_scratch_);
  weights_to_forward_ = reorder(stored, w);
  convolve_ = context_.bound<dnnl::convolution_forward>(
      conv_forward_, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, z}},
      forward_scratch_);
  Arguments norm{{DNNL_ARG_SRC, z},      {DNNL_ARG_DST, out},   {DNNL_ARG_SCALE, gamma},
                 {DNNL_ARG_SHIFT, beta}, {DNNL_ARG_MEAN, mean}, {DNNL_ARG_VARIANCE, variance}};
  normalise_training_ =
      context_.bound<dnnl::batch_normalization_forward>(norm_training_, norm, forward_scratch_);
  norm[DNNL_ARG_MEAN] = vector(weights.running_mean(layer_.statistics));
  norm[DNNL_ARG_VARIANCE] = vector(weights.running_variance(layer_.statistics));
  normalise_evaluation_ =
      context_.bound<dnnl::batch_normalization_forward>(norm_evaluation_, norm, forward_scratch_);

  dout_ = context_.memory(y_desc_, dz_);  // the data handle is set at each backward
  norm = {{DNNL_ARG_SRC, z},
          {DNNL_ARG_MEAN, mean},
          {DNNL_ARG_VARIANCE, variance},
          {DNNL_ARG_SCALE, gamma},
          {DNNL_ARG_DIFF_DST, dout_},
          {DNNL_ARG_DIFF_SRC, dz},
          {DNNL_ARG_DIFF_SCALE, vector(weights.gradient(layer_.gamma))},
          {DNNL_ARG_DIFF_SHIFT, vector(weights.gradient(layer_.beta))}};
  if (DNNL_VERSION_MAJOR < 3)  // v2 refuses to run without the shift, v3 with it
    norm.emplace(DNNL_ARG_SHIFT, beta);
  normalise_backward_ =
      context_.bound<dnnl::batch_normalization_backward>(norm_backward_, norm, backward_scratch_);

  // The gradient scratch holds the weights in the layout of the data gradient and then, after it,
  // the gradient in the layout of its primitive.
  if (dx_ != nullptr) {
    w = in_layout(conv_backward_data_.weights_desc(), stored, gradient_scratch_);
    weights_to_backward_ = reorder(stored, w);
    convolve_backward_data_ = context_.bound<dnnl::convolution_backward_data>(
        conv_backward_data_,
        {{DNNL_ARG_DIFF_DST, dz},
         {DNNL_ARG_WEIGHTS, w},
         {DNNL_ARG_DIFF_SRC, context_.memory(x_desc_, dx_)}},
        backward_scratch_);
  }
  const dnnl::memory dw =
      in_layout(conv_backward_weights_.diff_weights_desc(), stored_dw, gradient_scratch_);
  gradient_to_stored_ = reorder(dw, stored_dw);
  convolve_backward_weights_ = context_.bound<dnnl::convolution_backward_weights>(
      conv_backward_weights_,
      {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dz}, {DNNL_ARG_DIFF_WEIGHTS, dw}}, backward_scratch_);
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
        mask_(context.saved("mask", count_, spec.when)),
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

class CpuConvNormAdd final : public NetworkUnit {
 public:
  CpuConvNormAdd(CpuContext& context, const ConvNormAddSpec& spec)
      : context_(context), spec_(spec), count_(spec.layer.conv.y().count()) {
    const Moments when = spec.when;
    const std::size_t bytes = count_ * sizeof(float);
    main_ = std::make_unique<NormedConvolution>(context, spec.layer, when,
                                                activation_desc(spec.layer.conv.x, context.tag),
                                                spec.x, spec.y, spec.dx);
    if (spec.shortcut_layer) {
      branch_ = context.scratch("shortcut", bytes, when.forward);
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

std::unique_ptr<NetworkUnit> make_conv_norm(CpuContext& context, const ConvNormSpec& spec) {
  return std::make_unique<CpuConvNorm>(context, spec);
}

std::unique_ptr<NetworkUnit> make_conv_norm_add(CpuContext& context, const ConvNormAddSpec& spec) {
  return std::make_unique<CpuConvNormAdd>(context, spec);
}

}  // namespace shakedown::cpu
