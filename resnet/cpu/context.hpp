// The context that the cpu units share, and the functions that make them.
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <string>

#include "resnet/cpu/onednn.hpp"
#include "resnet/units.hpp"

namespace shakedown::cpu {

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
