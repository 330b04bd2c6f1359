// The SMs of a GPU: which one a block is on, and how blocks are kept to some of them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/device.hpp"

namespace shakedown::node::gpu {

/// Above every %smid there is.
inline constexpr int kMostProcessors = 1024;

/// Blocks per SM to launch so that one of them gets to each: they are spread over all SMs before
/// any SM has two, and those that are not needed end at once.
inline constexpr int kSpread = 4;

/// The %smid of this GPU's SMs, which need not be contiguous: those that blocks found themselves
/// on.
std::vector<int> processors(Device& device);

#ifdef __CUDACC__
__device__ inline int this_processor() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return static_cast<int>(id);
}

/// For a whole block, once: whether it is the first to take what `claim` stands for.
__device__ inline bool claimed(unsigned* claim) {
  __shared__ bool first;
  if (threadIdx.x == 0) first = atomicAdd(claim, 1U) == 0;
  __syncthreads();
  return first;
}
#endif

}  // namespace shakedown::node::gpu
