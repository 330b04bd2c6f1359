// What compute_perf measures on each GPU: names and units as in results/reference/limits.json.
#pragma once

#include <string>
#include <vector>

#include "launch/node/compute/product.hpp"

namespace shakedown::node {

struct Metric {
  std::string name;  // "product/bf16/flop_per_cycle_sm"
  std::string unit;
};

/// FLOP per SM cycle and SM, the clock of the SMs, and the rate. On the cpu backend the rate alone.
std::vector<Metric> product_metrics(ProductType type, BackendKind kind);
/// Read, write, copy, triad: in the order of MemoryTest.
std::vector<Metric> memory_metrics();
/// To the device, from it, both at once: each GPU alone; then the same of all GPUs at once.
std::vector<Metric> host_metrics();

}  // namespace shakedown::node
