// Mean and variance of a convolution's output from sums over its input (gram_kernels.hpp).
#include "resnet/gpu/gram_kernels.hpp"
#include "resnet/gpu/norm_statistics.cuh"

namespace shakedown::gpu {
namespace {

constexpr int kFilters = 4;  // of a block
constexpr int kThreadsOfStatistics = 1024;
constexpr int kWarps = kThreadsOfStatistics / 32;

__device__ double sum_of_warp(double x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// Sums of z and of z squared of kFilters channels: w s and the diagonal of w G w'. A thread has
/// one column of G and some of its rows, whose loads are all in flight at once.
template <class T, int kChannels>
__global__ void __launch_bounds__(kThreadsOfStatistics)
    gram_statistics_kernel(const T* weights, const float* gram, const float* sum_of_y,
                           const Count count, const NormParameters p, const NormVectors n) {
  constexpr int kSlices = kThreadsOfStatistics / kChannels;
  constexpr int kRows = kChannels / kSlices;
  constexpr int kSums = 2 * kFilters;
  static_assert(kFilters <= kSlices && kSums <= kWarps);
  __shared__ double w[kFilters][kChannels];
  __shared__ double parts[kSums][kWarps];
  __shared__ double totals[kSums];
  const int c = static_cast<int>(threadIdx.x) % kChannels;
  const int slice = static_cast<int>(threadIdx.x) / kChannels;
  const int first = static_cast<int>(blockIdx.x) * kFilters;
  float g[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) g[i] = gram[(slice * kRows + i) * kChannels + c];
  const float sum = slice == 0 ? sum_of_y[c] : 0.0F;
  if (slice < kFilters) w[slice][c] = to_float(weights[(first + slice) * kChannels + c]);
  __syncthreads();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    double dot = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) dot += w[f][slice * kRows + i] * static_cast<double>(g[i]);
    const double of_z = sum_of_warp(w[f][c] * static_cast<double>(sum));
    const double of_squares = sum_of_warp(w[f][c] * dot);
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
  ENSURE(channels == 64 || channels == 128, "channels of a norm through the Gram matrix");
  ENSURE(z.c % kFilters == 0, "filters of a norm through the Gram matrix");
  const auto blocks = static_cast<unsigned>(z.c / kFilters);
  with_type(type, [&]<class T>(T) {
    const auto kernel =
        channels == 64 ? gram_statistics_kernel<T, 64> : gram_statistics_kernel<T, 128>;
    kernel<<<blocks, kThreadsOfStatistics, 0, stream>>>(static_cast<const T*>(w), gram, sum_of_y,
                                                        Count::of(z), norm, vectors);
    CHECK_LAUNCH();
  });
}

bool gram_pays(std::size_t bytes_of_z) {
  return static_cast<double>(bytes_of_z) > kLeastShareOfL2 * attribute(cudaDevAttrL2CacheSize);
}

}  // namespace shakedown::gpu
