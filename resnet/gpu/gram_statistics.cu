// Mean and variance of a convolution's output from sums over its input (gram_kernels.hpp).
#include "resnet/gpu/gram_kernels.hpp"
#include "resnet/gpu/norm_statistics.cuh"

namespace shakedown::gpu {
namespace {

constexpr int kThreadsOfStatistics = 1024;
constexpr int kWarps = kThreadsOfStatistics / 32;
constexpr int kRowsInFlight = 16;

/// Of a block: more where G is large, as every block reads all of it.
SHAKEDOWN_HOST_DEVICE constexpr int filters_at_once(int channels) { return channels > 128 ? 8 : 4; }

__device__ double sum_of_warp(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// Sums of z and of z squared of some channels: w s and the diagonal of w G w'. A thread has one
/// column of G and some of its rows, kRowsInFlight of which are loaded at once.
template <class T, int kChannels>
__global__ void __launch_bounds__(kThreadsOfStatistics)
    gram_statistics_kernel(const T* weights, const float* gram, const float* sum_of_y,
                           const Count count, const NormParameters p, const NormVectors n) {
  constexpr int kFilters = filters_at_once(kChannels);
  constexpr int kSlices = kThreadsOfStatistics / kChannels;
  constexpr int kRows = kChannels / kSlices;
  constexpr int kAtOnce = kRows < kRowsInFlight ? kRows : kRowsInFlight;
  constexpr int kSums = 2 * kFilters;
  static_assert(kSums <= kWarps);
  __shared__ double w[kFilters][kChannels];
  __shared__ double parts[kSums][kWarps];
  __shared__ double totals[kSums];
  const int c = static_cast<int>(threadIdx.x) % kChannels;
  const int slice = static_cast<int>(threadIdx.x) / kChannels;
  const int first = static_cast<int>(blockIdx.x) * kFilters;
  float g[kAtOnce];
  const auto load = [&](int row) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) g[i] = gram[(slice * kRows + row + i) * kChannels + c];
  };
  load(0);
  const float sum = slice == 0 ? sum_of_y[c] : 0.0F;
  for (int f = slice; f < kFilters; f += kSlices)
    w[f][c] = to_float(weights[(first + f) * kChannels + c]);
  __syncthreads();

  double dots[kFilters] = {};
  for (int row = 0; row < kRows; row += kAtOnce) {
    if (row > 0) load(row);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
      for (int f = 0; f < kFilters; ++f)
        dots[f] += w[f][slice * kRows + row + i] * static_cast<double>(g[i]);
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    const double of_z = sum_of_warp(w[f][c] * static_cast<double>(sum));
    const double of_squares = sum_of_warp(w[f][c] * dots[f]);
    if (lane == 0) {
      parts[f][warp] = of_z;
      parts[kFilters + f][warp] = of_squares;
    }
  }
  __syncthreads();
  if (warp < kSums) {
    const double total = sum_of_warp(parts[warp][lane]);
    if (lane == 0) totals[warp] = total;
  }
  __syncthreads();
  if (threadIdx.x < kFilters)
    set_statistics(first + static_cast<int>(threadIdx.x), 0, totals[threadIdx.x],
                   totals[kFilters + threadIdx.x], count, p, n);
}

}  // namespace

void gram_statistics(const void* w, int channels, const float* gram, const float* sum_of_y,
                     const ActivationShape& z, const NormParameters& norm,
                     const NormVectors& vectors, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto run = [&]<int kChannels>(std::integral_constant<int, kChannels>) {
      constexpr int kFilters = filters_at_once(kChannels);
      ENSURE(z.c % kFilters == 0, "filters of a norm through the Gram matrix");
      gram_statistics_kernel<T, kChannels>
          <<<static_cast<unsigned>(z.c / kFilters), kThreadsOfStatistics, 0, stream>>>(
              static_cast<const T*>(w), gram, sum_of_y, Count::of(z), norm, vectors);
      CHECK_LAUNCH();
    };
    switch (channels) {
      case 64: return run(std::integral_constant<int, 64>{});
      case 128: return run(std::integral_constant<int, 128>{});
      case 256: return run(std::integral_constant<int, 256>{});
      default: throw InternalError("channels of a norm through the Gram matrix");
    }
  });
}

bool gram_pays(std::size_t bytes_of_z) {
  return static_cast<double>(bytes_of_z) > kLeastShareOfL2 * attribute(cudaDevAttrL2CacheSize);
}

}  // namespace shakedown::gpu
