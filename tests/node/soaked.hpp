// Made-up windows of a soak: of three healthy GPUs at the power cap.
#pragma once

#include <vector>

#include "launch/node/soak/window.hpp"

namespace shakedown::test {

inline const std::vector<node::RankIdentity> kRanks{
    {"n1", "GPU-a", "1", "H200"}, {"n1", "GPU-b", "2", "H200"}, {"n1", "GPU-c", "3", "H200"}};

/// Of steady products of bf16.
inline std::vector<node::Window> windows(int count) {
  node::RankWindow healthy;
  healthy.seconds = 10;
  healthy.counts[0] = {5000, 0, 0, 0, 6e15, 10, 12};
  healthy.hardware_slowdown_share = healthy.thermal_share = 0;
  healthy.power_cap_share = 1;
  healthy.errors = {0, 0, 0, 0};
  std::vector<node::Window> all;
  for (int i = 0; i < count; ++i)
    all.push_back(
        {i, "steady products bf16", node::ProductType::bf16, std::vector(kRanks.size(), healthy)});
  return all;
}

}  // namespace shakedown::test
