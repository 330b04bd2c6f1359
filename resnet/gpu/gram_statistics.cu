// Mean and variance of a convolution's output from sums over its input (gram_kernels.hpp).
#include "resnet/gpu/gram_kernels.hpp"
#include "resnet/gpu/norm_statistics.cuh"
#include "resnet/gpu/tensor_cores.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kFilters = 8;  // of a block: the columns of a product
constexpr unsigned kTile = 32;
constexpr unsigned kSteps = kTile / 4;

/// The tiles of G that are read: as it is symmetric, those on the diagonal, and half of the others,
/// which count twice. Tile i is in row i % kAcross, i / kAcross right of the diagonal, cyclically.
template <unsigned kChannels>
struct Tiles {
  static constexpr unsigned kAcross = kChannels / kTile;
  static constexpr unsigned kCount = kAcross * (kAcross + 1) / 2;
  static constexpr unsigned kOfWarp = kChannels > 128 ? 3 : 1;
  static constexpr unsigned kWarps = kCount / kOfWarp;
  static constexpr unsigned kThreads = kWarps * 32;
  static constexpr std::size_t kBytes = kCount * kTile * kTile * sizeof(float);
  static_assert(kWarps * kOfWarp == kCount && kWarps >= kAcross);

  __device__ static unsigned row(unsigned tile) { return tile % kAcross * kTile; }
  __device__ static unsigned column(unsigned tile) {
    return (tile + tile / kAcross) % kAcross * kTile;
  }
};

/// c += a b in float64: 16 x 8 += 16 x 4 times 4 x 8 (8-row products are slower on Hopper). Lane l
/// has b's row l % 4 of column l / 4, a's column l % 4 of rows l / 4 and l / 4 + 8, and of c those
/// rows' columns l % 4 * 2 + {0, 1}.
__device__ void multiply(double (&c)[4], double a, double a_below, double b) {
  asm volatile(
      "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a), "d"(a_below), "d"(b));
}

/// Over the lanes l with the same l % 4.
__device__ double sum_of_quads(double x) {
  for (int step = 16; step >= 4; step /= 2) x += __shfl_xor_sync(~0U, x, step);
  return x;
}

/// Sums of z and of z squared of some filters: w s and the diagonal of w G w'. All of G that a
/// block reads is on its way before the first product: to shared memory, as the compiler puts off
/// loads to registers. A product's rows are columns of G, permuted: a thread copies four adjacent
/// elements at a time, which it alone reads.
template <class T, unsigned kChannels>
__global__ void __launch_bounds__(Tiles<kChannels>::kThreads)
    gram_statistics_kernel(const T* weights, const float* gram, const float* sum_of_y,
                           const Count count, const NormParameters p, const NormVectors n) {
  using Of = Tiles<kChannels>;
  constexpr unsigned kVector = vector_width<T>;
  extern __shared__ float4 tiles[];
  __shared__ alignas(16) T copied[kFilters][kChannels];
  __shared__ alignas(16) float s[kChannels];
  __shared__ double w[kFilters][kChannels + 4];  // what a warp reads at once: in different banks
  __shared__ double parts[2][kFilters][Of::kWarps];
  const unsigned thread = threadIdx.x;
  const unsigned warp = thread / 32;
  const unsigned lane = thread % 32;
  const unsigned quad = lane / 4;
  const unsigned in_quad = lane % 4;
  const unsigned first = blockIdx.x * kFilters;

#pragma unroll
  for (unsigned i = thread * kVector; i < kFilters * kChannels; i += Of::kThreads * kVector)
    copy_16(shared_address(copied[0] + i), weights + first * kChannels + i, true);
  if (thread < kChannels / 4) copy_16(shared_address(s + 4 * thread), sum_of_y + 4 * thread, true);
  commit_copies();
  float4* const own = tiles + thread;
#pragma unroll
  for (unsigned i = 0; i < Of::kOfWarp; ++i) {
    const unsigned tile = warp + i * Of::kWarps;
    const float* from = gram + (Of::row(tile) + in_quad) * kChannels + Of::column(tile) + 4 * quad;
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step)
      copy_16(shared_address(own + (i * kSteps + step) * Of::kThreads), from + 4 * step * kChannels,
              true);
    commit_copies();
  }
  wait_for_copies<Of::kOfWarp>();
  __syncthreads();
  for (unsigned f = warp; f < kFilters; f += Of::kWarps)
#pragma unroll
    for (unsigned i = lane; i < kChannels; i += 32) w[f][i] = to_float(copied[f][i]);
  __syncthreads();

  double of_squares[2] = {};
#pragma unroll
  for (unsigned i = 0; i < Of::kOfWarp; ++i) {
    const unsigned tile = warp + i * Of::kWarps;
    double c[2][4] = {};
    wait_for_copies<Of::kOfWarp - 1>();
    commit_copies();  // none: the next wait is for the next tile
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) {
      const float4 g = own[(i * kSteps + step) * Of::kThreads];
      const double b = w[quad][Of::row(tile) + 4 * step + in_quad];
      multiply(c[0], g.x, g.y, b);
      multiply(c[1], g.z, g.w, b);
    }
#pragma unroll
    for (unsigned f = 0; f < 2; ++f) {
      const double* of_filter = &w[2 * in_quad + f][Of::column(tile) + 4 * quad];
      double dot = 0;
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) dot += of_filter[j] * c[j / 2][j % 2 * 2 + f];
      of_squares[f] += tile < Of::kAcross ? dot : 2 * dot;
    }
  }
  double of_z[2] = {};
  if (warp < Of::kAcross)
#pragma unroll
    for (unsigned j = 0; j < 4; ++j) {
      const unsigned channel = warp * kTile + 4 * quad + j;
      const double of_y = s[channel];
#pragma unroll
      for (unsigned f = 0; f < 2; ++f) of_z[f] += w[2 * in_quad + f][channel] * of_y;
    }
#pragma unroll
  for (unsigned f = 0; f < 2; ++f) {
    const double z = sum_of_quads(of_z[f]);
    const double squares = sum_of_quads(of_squares[f]);
    if (quad == 0) {
      parts[0][2 * in_quad + f][warp] = z;
      parts[1][2 * in_quad + f][warp] = squares;
    }
  }
  __syncthreads();
  if (thread >= kFilters) return;
  double z = 0;
  double squares = 0;
#pragma unroll
  for (unsigned i = 0; i < Of::kWarps; ++i) {
    z += parts[0][thread][i];
    squares += parts[1][thread][i];
  }
  set_statistics(static_cast<int>(first + thread), 0, z, squares, count, p, n);
}

}  // namespace

void gram_statistics(const void* w, int channels, const float* gram, const float* sum_of_y,
                     const ActivationShape& z, const NormParameters& norm,
                     const NormVectors& vectors, DataType type, cudaStream_t stream) {
  with_type(type, [&]<class T>(T) {
    const auto run = [&]<unsigned kChannels>(std::integral_constant<unsigned, kChannels>) {
      const auto filters = static_cast<unsigned>(z.c);
      ENSURE(filters % kFilters == 0, "filters of a norm through the Gram matrix");
      using Of = Tiles<kChannels>;
      const auto kernel = gram_statistics_kernel<T, kChannels>;
      CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(Of::kBytes)));
      kernel<<<filters / kFilters, Of::kThreads, Of::kBytes, stream>>>(
          static_cast<const T*>(w), gram, sum_of_y, Count::of(z), norm, vectors);
      CHECK_LAUNCH();
    };
    switch (channels) {
      case 64: return run(std::integral_constant<unsigned, 64>{});
      case 128: return run(std::integral_constant<unsigned, 128>{});
      case 256: return run(std::integral_constant<unsigned, 256>{});
      default: throw InternalError("channels of a norm through the Gram matrix");
    }
  });
}

bool gram_pays(std::size_t bytes_of_z) {
  return static_cast<double>(bytes_of_z) > kLeastShareOfL2 * attribute(cudaDevAttrL2CacheSize);
}

}  // namespace shakedown::gpu
