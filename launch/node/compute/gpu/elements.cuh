// Grid-stride loops over elements.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shakedown::node::gpu {

inline constexpr int kThreads = 256;

/// Blocks of a grid-stride loop: enough to fill any GPU, few where there is little to do.
inline unsigned blocks_for(std::size_t count) {
  const std::size_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<std::size_t>(blocks, 1, 4096));
}

__device__ inline std::size_t global_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::size_t grid_threads() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

}  // namespace shakedown::node::gpu
