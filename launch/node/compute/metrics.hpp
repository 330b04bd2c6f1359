// What compute_perf measures on each GPU, and how far healthy GPUs differ in it.
#pragma once

#include <string>
#include <vector>

#include "launch/node/compute/judge.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

struct Metric {
  std::string name;  // "bf16 sustained"
  std::string unit;  // "TFLOP/s" or "GB/s"
  Limits limits;
  bool follows_clock = false;  // a product's rate does
};

/// First products of 10 after 3, then those under the power limit.
std::vector<Metric> product_metrics(ProductType type);
/// Read, write, copy, triad: in the order of MemoryTest.
std::vector<Metric> memory_metrics();
/// To the device, from it, both at once: each GPU alone; then the same of all GPUs at once.
std::vector<Metric> host_metrics();
std::vector<Metric> all_metrics(const std::vector<ProductType>& types);

}  // namespace shakedown::node
