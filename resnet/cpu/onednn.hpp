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

Desc activation_desc(const ActivationShape& shape, Tag tag);
Desc weight_desc(const ConvShape& conv, Tag tag);
/// One float per channel.
Desc channel_desc(int channels);

/// The layout in which this processor's convolutions are fastest, of those a whole network can
/// keep.
Tag preferred_activation_tag(const dnnl::engine& engine);

using ConvForward = dnnl::convolution_forward::primitive_desc;
using ConvBackwardData = dnnl::convolution_backward_data::primitive_desc;
using ConvBackwardWeights = dnnl::convolution_backward_weights::primitive_desc;
using NormForward = dnnl::batch_normalization_forward::primitive_desc;
using NormBackward = dnnl::batch_normalization_backward::primitive_desc;
using PoolForward = dnnl::pooling_forward::primitive_desc;
using PoolBackward = dnnl::pooling_backward::primitive_desc;

// Weights are in the layout that the primitive prefers; scratchpads are the caller's.
ConvForward conv_forward(const dnnl::engine& engine, const ConvShape& conv, const Desc& x,
                         const Desc& y);
ConvBackwardData conv_backward_data(const dnnl::engine& engine, const ConvShape& conv,
                                    const Desc& x, const Desc& y, const ConvForward& forward);
ConvBackwardWeights conv_backward_weights(const dnnl::engine& engine, const ConvShape& conv,
                                          const Desc& x, const Desc& y, const ConvForward& forward);

enum class NormMode { training, evaluation };
NormForward norm_forward(const dnnl::engine& engine, const Desc& x, NormMode mode);
/// v2 refuses to run without the shift, v3 with it.
inline constexpr bool kNormBackwardTakesShift = DNNL_VERSION_MAJOR < 3;
NormBackward norm_backward(const dnnl::engine& engine, const Desc& x, const NormForward& forward);

/// Square windows.
struct PoolShape {
  dnnl::algorithm algorithm;
  int kernel;
  int stride;
  int pad;
};
PoolForward pool_forward(const dnnl::engine& engine, const PoolShape& pool, const Desc& x,
                         const Desc& y);
PoolBackward pool_backward(const dnnl::engine& engine, const PoolShape& pool, const Desc& x,
                           const Desc& y, const PoolForward& forward);

/// A primitive with the memory it works on.
class Operation {
 public:
  Operation() = default;
  Operation(dnnl::primitive primitive, std::unordered_map<int, dnnl::memory> arguments)
      : primitive_(std::move(primitive)), arguments_(std::move(arguments)) {}

  bool empty() const { return !primitive_; }
  void run(dnnl::stream& stream) const {
    if (primitive_) primitive_.execute(stream, arguments_);
  }

 private:
  dnnl::primitive primitive_;  // empty: nothing to do
  std::unordered_map<int, dnnl::memory> arguments_;
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
    return {desc, engine, slot->data()};
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
