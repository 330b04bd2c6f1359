// The SMs of a GPU: which one a block is on, and how blocks are kept to some of them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/device.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::node::gpu {

/// Above every %smid there is.
inline constexpr int kMostProcessors = 1024;

/// The %smid of this GPU's SMs, which need not be contiguous: those that blocks found themselves
/// on.
std::vector<int> processors(Device& device);

#ifdef __CUDACC__
__device__ inline int this_processor() {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return static_cast<int>(id);
}

/// The same on all SMs; in steps of up to a microsecond.
__device__ inline unsigned long long nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

/// For a whole block, once: whether it is the first to take what `claim` stands for.
__device__ inline bool claimed(unsigned* claim) {
  __shared__ bool first;
  if (threadIdx.x == 0) first = atomicAdd(claim, 1U) == 0;
  __syncthreads();
  return first;
}

/// For a block on an SM that is not wanted: stays on it, so that blocks yet to come get to others,
/// until `claims` reaches `wanted`; 5 ms at most.
__device__ inline void hold_processor(const volatile unsigned* claims, unsigned wanted) {
  if (threadIdx.x != 0) return;
  const unsigned long long begin = nanoseconds();
  while (*claims < wanted && nanoseconds() - begin < 5000000) __nanosleep(1000);
}

/// Launches two blocks for each SM, of which it holds one at a time: each needs nearly all of its
/// shared memory. While other kernels run, they get to one SM after another.
template <class... Parameters, class... Arguments>
void launch_one_per_processor(void (*kernel)(Parameters...), std::size_t processors, int threads,
                              cudaStream_t stream, Arguments... arguments) {
  int device = 0;
  int most = 0;
  cudaFuncAttributes attributes{};
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  // All but a little: what the kernel declares itself is aligned.
  const int shared = (most - static_cast<int>(attributes.sharedSizeBytes)) / 1024 * 1024 - 1024;
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  kernel<<<static_cast<unsigned>(2 * processors), static_cast<unsigned>(threads),
           static_cast<std::size_t>(shared), stream>>>(arguments...);
  CHECK_LAUNCH();
}
#endif

}  // namespace shakedown::node::gpu
