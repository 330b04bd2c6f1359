// Sums over the threads of a warp or of a block, in a fixed order.
#pragma once

#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {

inline constexpr unsigned kWarps = kThreads / 32;

/// Adds up a thread's `count` sums over the lanes that differ in the bits from `step` down to
/// `last`, and shares them out: each lane is left with the first of its share, which is the higher
/// half of what it shares with a lane whose bit differs where its own is set.
template <unsigned step, unsigned last, int count>
__device__ void add_across(float* sums) {
  constexpr int kHalf = count / 2;
  const bool upper = (threadIdx.x & step) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float sent = upper ? sums[i] : sums[kHalf + i];
    const float kept = upper ? sums[kHalf + i] : sums[i];
    sums[i] = kept + __shfl_xor_sync(~0U, sent, static_cast<int>(step));
  }
  if constexpr (step > last) add_across<step / 2, last, kHalf>(sums);
}
/// The sum over the lanes that differ in the bits from 16 down to `last`: every lane has it.
template <unsigned last, class T>
__device__ T sum_across(T sum) {
#pragma unroll
  for (unsigned step = 16; step >= last; step /= 2)
    sum += __shfl_xor_sync(~0U, sum, static_cast<int>(step));
  return sum;
}

/// The sum over `parts`, `stride` floats apart, of float threadIdx.x below 4 kLanes: in a fixed
/// order, four at a time in float32, these in float64. The whole block calls it.
template <unsigned kLanes>
__device__ double sum_of_parts(const float* from, unsigned parts, std::size_t stride) {
  constexpr unsigned kInFlight = 4;  // loads of a thread: their latency is what this takes
  constexpr unsigned kPlanes = kThreads / kLanes;
  constexpr unsigned kWarpsAcross = kLanes > 32 ? kLanes / 32 : 1;
  __shared__ double shared[kWarps / kWarpsAcross][4 * kLanes];
  const unsigned lane = threadIdx.x % kLanes;
  unsigned part = threadIdx.x / kLanes;
  const float* at = from + part * stride + 4 * lane;
  double sums[4] = {};
  for (; part < parts; part += kInFlight * kPlanes, at += kInFlight * kPlanes * stride) {
    Vector<float, 4> loaded[kInFlight] = {};
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i)
      if (part + i * kPlanes < parts) loaded[i] = Vector<float, 4>::load(at + i * kPlanes * stride);
#pragma unroll
    for (int v = 0; v < 4; ++v)
      sums[v] += static_cast<double>((loaded[0].x[v] + loaded[1].x[v]) +
                                     (loaded[2].x[v] + loaded[3].x[v]));
  }
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    if constexpr (kLanes < 32) sums[v] = sum_across<kLanes>(sums[v]);
    if (threadIdx.x % 32 < kLanes)
      shared[threadIdx.x / 32 / kWarpsAcross][4 * lane + static_cast<unsigned>(v)] = sums[v];
  }
  __syncthreads();
  double total = 0;
  if (threadIdx.x < 4 * kLanes)
#pragma unroll
    for (unsigned i = 0; i < kWarps / kWarpsAcross; ++i) total += shared[i][threadIdx.x];
  return total;
}

}  // namespace shakedown::gpu
