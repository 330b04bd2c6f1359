#include "launch/node/compute/metrics.hpp"

#include <fmt/format.h>

namespace shakedown::node {

std::vector<Metric> product_metrics(ProductType type, BackendKind kind) {
  const std::string product = fmt::format("product/{}/", name_of(type));
  const Metric rate{product + "tflops", "TFLOP/s"};
  if (kind == BackendKind::cpu) return {rate};
  return {{product + "flop_per_cycle_sm", "FLOP/cycle/SM"}, {product + "clock_mhz", "MHz"}, rate};
}

std::vector<Metric> memory_metrics() {
  std::vector<Metric> metrics;
  for (const char* access : {"read", "write", "copy", "triad"})
    metrics.push_back({fmt::format("memory/{}", access), "GB/s"});
  return metrics;
}

std::vector<Metric> host_metrics() {
  std::vector<Metric> metrics;
  for (const char* manner : {"alone", "all_at_once"})
    for (const char* direction : {"to_device", "from_device", "both"})
      metrics.push_back({fmt::format("host_link/{}/{}", direction, manner), "GB/s"});
  return metrics;
}

}  // namespace shakedown::node
