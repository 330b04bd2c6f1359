// oneDNN primitives with the few parameters ResNets need, the same for its v2 and v3 interfaces.
#pragma once

#include <concepts>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "resnet/architecture.hpp"
#include "resnet/units.hpp"

namespace shakedown::cpu {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

constexpr auto kFloat = dnnl::memory::data_type::f32;

inline Desc activation_desc(const ActivationShape& s, Tag tag) {
  return {{s.n, s.c, s.h, s.w}, kFloat, tag};
}
inline Desc weight_desc(const ConvShape& conv, Tag tag) {
  return {{conv.k, conv.x.c, conv.kernel, conv.kernel}, kFloat, tag};
}
/// One float per channel.
inline Desc channel_desc(int channels) { return {{channels}, kFloat, Tag::a}; }

/// The layout in which this processor's convolutions are fastest, of those a whole network can
/// keep: Planes with 16, 8 or all channels as lanes.
Tag preferred_activation_tag(const dnnl::engine& engine);

/// An activation in memory: planes of h x w pixels, each `lanes` channels side by side.
struct Planes {
  std::ptrdiff_t count, h, w, lanes;

  Planes(const ActivationShape& s, Tag tag)
      : count(0),
        h(s.h),
        w(s.w),
        lanes(tag == Tag::nChw16c  ? 16
              : tag == Tag::nChw8c ? 8
                                   : s.c) {
    count = std::ptrdiff_t{s.n} * s.c / lanes;
  }
  std::ptrdiff_t at(std::ptrdiff_t plane, std::ptrdiff_t row, std::ptrdiff_t column) const {
    return ((plane * h + row) * w + column) * lanes;
  }
};

using Arguments = std::unordered_map<int, dnnl::memory>;

/// A primitive with the memory it works on.
class Operation {
 public:
  Operation() = default;
  Operation(dnnl::primitive primitive, Arguments arguments)
      : primitive_(std::move(primitive)), arguments_(std::move(arguments)) {}

  bool empty() const { return !primitive_; }
  void run(dnnl::stream& stream) const {
    if (primitive_) primitive_.execute(stream, arguments_);
  }

 private:
  dnnl::primitive primitive_;  // empty: nothing to do
  Arguments arguments_;
};

// The context that the cpu units share, and the functions that make them.

struct CpuContext : UnitContext {
  explicit CpuContext(const UnitContext& context) : UnitContext(context) {}

  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream dnnl_stream{engine};
  Tag tag = preferred_activation_tag(engine);
  std::map<std::string, Desc> weight_layouts;  // parameter name -> layout in the flat buffers

  dnnl::memory memory(const Desc& desc, void* data) const { return {desc, engine, data}; }
  dnnl::memory memory(const Desc& desc, const Slot* slot) const {
    return memory(desc, slot->data());
  }
  /// The primitive with its arguments and the scratchpad that it requires.
  template <class Primitive>
  Operation bound(const typename Primitive::primitive_desc& desc, Arguments arguments,
                  const Slot* scratch) const {
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(desc.scratchpad_desc(), scratch));
    return {Primitive(desc), std::move(arguments)};
  }

  /// Runs `body`, which moves `bytes` for the layer with these weights.
  template <std::invocable Body>
  void run(const char* kernel, int weight, double bytes, Body&& body) const {
    log.run({kernel, weight, bytes, 0}, body);
  }
  void run(const char* kernel, int weight, double bytes, const Operation& operation) {
    run(kernel, weight, bytes, [&] { operation.run(dnnl_stream); });
  }
};

inline double bytes_of(const Desc& desc) { return static_cast<double>(desc.get_size()); }

/// out = norm(conv(x)) and its backward pass.
class NormedConvolution {
 public:
  /// `x_desc` is x's layout; `dx` may be null: the gradient of x is not needed.
  NormedConvolution(CpuContext& context, const NormedConv& layer, Moments when, const Desc& x_desc,
                    const Slot* x, const Slot* out, const Slot* dx);

  void bind();
  void forward(Pass pass);
  /// `dout` is the whole gradient of out.
  void backward(const Slot* dout);

  int weight() const { return layer_.weight; }

 private:
  void update_running_statistics() const;
  void convolve(const char* kernel, const Operation& operation) const;
  /// Where a primitive needs the weights in another layout.
  void reorder_weights(const Operation& operation) const;

  CpuContext& context_;
  NormedConv layer_;
  Desc x_desc_;
  Desc y_desc_;
  Desc stored_;  // the weights' layout in the flat buffers
  const Slot* x_;
  const Slot* out_;
  const Slot* dx_;

  dnnl::convolution_forward::primitive_desc conv_forward_;
  dnnl::convolution_backward_data::primitive_desc conv_backward_data_;
  dnnl::convolution_backward_weights::primitive_desc conv_backward_weights_;
  dnnl::batch_normalization_forward::primitive_desc norm_training_;
  dnnl::batch_normalization_forward::primitive_desc norm_evaluation_;
  dnnl::batch_normalization_backward::primitive_desc norm_backward_;

  const Slot* z_;  // the convolution's output
  const Slot* mean_;
  const Slot* variance_;
  const Slot* dz_;               // gradient of z
  const Slot* weights_scratch_;  // weights in another layout, forward and backward
  const Slot* gradient_scratch_;
  const Slot* forward_scratch_;
  const Slot* backward_scratch_;

  Operation weights_to_forward_;
  Operation convolve_;
  Operation normalise_training_;
  Operation normalise_evaluation_;
  Operation normalise_backward_;
  Operation weights_to_backward_;
  Operation convolve_backward_data_;
  Operation convolve_backward_weights_;
  Operation gradient_to_stored_;
  dnnl::memory dout_;  // handle set at each backward
};

/// C = A B + beta C in float32, row by row; A and B are transposed where that is 'T', not 'N'. C is
/// m x n, A m x k.
struct GemmShape {
  char ta, tb;
  dnnl_dim_t m, n, k;
};
void gemm(const GemmShape& shape, const float* a, const float* b, float beta, float* c);

// As PyTorch's: a NaN stays, and passes its gradient. (oneDNN's ReLU and max-pool drop it.)
inline bool relu_stops(float x) { return x <= 0; }
inline float relu(float x) { return relu_stops(x) ? 0.0F : x; }

std::unique_ptr<NetworkUnit> make_stem(CpuContext& shared, const StemSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm(CpuContext& shared, const ConvNormSpec& spec);
std::unique_ptr<NetworkUnit> make_conv_norm_add(CpuContext& shared, const ConvNormAddSpec& spec);
std::unique_ptr<NetworkUnit> make_head(CpuContext& shared, const HeadSpec& spec);

Roofs measure_roofs(CpuContext& shared);

}  // namespace shakedown::cpu
