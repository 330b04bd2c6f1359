#include "launch/node/compute/metrics.hpp"

#include <fmt/format.h>

namespace shakedown::node {
namespace {

// Healthy GPUs lie within 5 % and more in products, which power and cooling limit; within 1 % in
// memory; within 0.2 % in host links (ml-engineering), where all at once share the host's memory.
constexpr Limits kProduct{0.93, 0.90};
constexpr Limits kMemory{0.98, 0.95};
constexpr Limits kHostLink{0.98, 0.90};

constexpr const char* kGbs = "GB/s";

}  // namespace

std::vector<Metric> product_metrics(ProductType type) {
  std::vector<Metric> metrics;
  for (const char* mode : {"burst", "sustained"})
    metrics.push_back({fmt::format("{} {}", name_of(type), mode), "TFLOP/s", kProduct, true});
  return metrics;
}

std::vector<Metric> memory_metrics() {
  std::vector<Metric> metrics;
  for (const char* access : {"read", "write", "copy", "triad"})
    metrics.push_back({fmt::format("memory {}", access), kGbs, kMemory, false});
  return metrics;
}

std::vector<Metric> host_metrics() {
  std::vector<Metric> metrics;
  for (const char* manner : {"alone", "all at once"})
    for (const char* direction : {"host to device", "device to host", "both directions"})
      metrics.push_back({fmt::format("{}, {}", direction, manner), kGbs, kHostLink, false});
  return metrics;
}

std::vector<Metric> all_metrics(const std::vector<ProductType>& types) {
  std::vector<Metric> metrics;
  const auto add = [&](const std::vector<Metric>& more) {
    metrics.insert(metrics.end(), more.begin(), more.end());
  };
  for (const ProductType type : types) add(product_metrics(type));
  add(memory_metrics());
  add(host_metrics());
  return metrics;
}

}  // namespace shakedown::node
