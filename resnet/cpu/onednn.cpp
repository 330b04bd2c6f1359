#include "resnet/cpu/onednn.hpp"

#include <array>
#include <tuple>

#include "resnet/units.hpp"

namespace shakedown::cpu {
namespace {

using Dims = dnnl::memory::dims;
constexpr auto kFloat = dnnl::memory::data_type::f32;

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

/// v3 (from 2023) has no operation descriptors: the same arguments, in another place.
template <class Primitive, class... Arguments, class... Hint>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const std::tuple<Arguments...>& arguments,
                                            const Hint&... hint) {
  return std::apply(
      [&](const auto&... a) {
#if DNNL_VERSION_MAJOR >= 3
        return typename Primitive::primitive_desc(engine, a..., hint..., user_scratchpad());
#else
        return typename Primitive::primitive_desc(typename Primitive::desc(a...), user_scratchpad(),
                                                  engine, hint...);
#endif
      },
      arguments);
}

Dims square(int size) { return {size, size}; }

dnnl::normalization_flags scale_and_shift() {
  return dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
}

auto window_of(const PoolShape& pool) {
#if DNNL_VERSION_MAJOR >= 3
  return std::tuple(square(pool.stride), square(pool.kernel), square(0), square(pool.pad),
                    square(pool.pad));  // no dilation
#else
  return std::tuple(square(pool.stride), square(pool.kernel), square(pool.pad), square(pool.pad));
#endif
}

}  // namespace

Desc activation_desc(const ActivationShape& s, Tag tag) {
  return {{s.n, s.c, s.h, s.w}, kFloat, tag};
}

Desc weight_desc(const ConvShape& conv, Tag tag) {
  return {{conv.k, conv.x.c, conv.kernel, conv.kernel}, kFloat, tag};
}

Desc channel_desc(int channels) { return {{channels}, kFloat, Tag::a}; }

Tag preferred_activation_tag(const dnnl::engine& engine) {
  const ConvShape typical{{8, 64, 28, 28}, 64, 3, 1, 1};
  const Desc chosen = conv_forward(engine, typical, activation_desc(typical.x, Tag::any),
                                   activation_desc(typical.y(), Tag::any))
                          .dst_desc();
  for (Tag tag : std::array{Tag::nChw16c, Tag::nChw8c, Tag::nhwc})
    if (chosen == activation_desc(typical.y(), tag)) return tag;
  return Tag::nhwc;
}

ConvForward conv_forward(const dnnl::engine& engine, const ConvShape& conv, const Desc& x,
                         const Desc& y) {
  return describe<dnnl::convolution_forward>(
      engine, std::tuple(dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, x,
                         weight_desc(conv, Tag::any), y, square(conv.stride), square(conv.pad),
                         square(conv.pad)));
}

ConvBackwardData conv_backward_data(const dnnl::engine& engine, const ConvShape& conv,
                                    const Desc& x, const Desc& y, const ConvForward& forward) {
  return describe<dnnl::convolution_backward_data>(
      engine,
      std::tuple(dnnl::algorithm::convolution_direct, x, weight_desc(conv, Tag::any), y,
                 square(conv.stride), square(conv.pad), square(conv.pad)),
      forward);
}

ConvBackwardWeights conv_backward_weights(const dnnl::engine& engine, const ConvShape& conv,
                                          const Desc& x, const Desc& y,
                                          const ConvForward& forward) {
  return describe<dnnl::convolution_backward_weights>(
      engine,
      std::tuple(dnnl::algorithm::convolution_direct, x, weight_desc(conv, Tag::any), y,
                 square(conv.stride), square(conv.pad), square(conv.pad)),
      forward);
}

NormForward norm_forward(const dnnl::engine& engine, const Desc& x, NormMode mode) {
  const bool training = mode == NormMode::training;
  const auto kind =
      training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
  const auto flags = training ? scale_and_shift()
                              : scale_and_shift() | dnnl::normalization_flags::use_global_stats;
#if DNNL_VERSION_MAJOR >= 3
  const std::tuple arguments(kind, x, x, kNormEpsilon, flags);
#else
  const std::tuple arguments(kind, x, kNormEpsilon, flags);
#endif
  return describe<dnnl::batch_normalization_forward>(engine, arguments);
}

NormBackward norm_backward(const dnnl::engine& engine, const Desc& x, const NormForward& forward) {
#if DNNL_VERSION_MAJOR >= 3
  const std::tuple arguments(dnnl::prop_kind::backward, x, x, x, kNormEpsilon, scale_and_shift());
#else
  const std::tuple arguments(dnnl::prop_kind::backward, x, x, kNormEpsilon, scale_and_shift());
#endif
  return describe<dnnl::batch_normalization_backward>(engine, arguments, forward);
}

PoolForward pool_forward(const dnnl::engine& engine, const PoolShape& pool, const Desc& x,
                         const Desc& y) {
  return describe<dnnl::pooling_forward>(
      engine, std::tuple_cat(std::tuple(dnnl::prop_kind::forward_training, pool.algorithm, x, y),
                             window_of(pool)));
}

PoolBackward pool_backward(const dnnl::engine& engine, const PoolShape& pool, const Desc& x,
                           const Desc& y, const PoolForward& forward) {
  return describe<dnnl::pooling_backward>(
      engine, std::tuple_cat(std::tuple(pool.algorithm, x, y), window_of(pool)), forward);
}

}  // namespace shakedown::cpu
