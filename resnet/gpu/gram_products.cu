// The gradient inside a block, where its last convolution is 1x1 of stride 1, through the norm
// after it by the Gram matrix (unit_kernels.hpp): one product of [y | g], or of y what is added to
// g's, the mask of the ReLU before the convolution and the sums for that ReLU's norm. Compiled for
// sm_90a alone.

#include "common/ensure.hpp"
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/passes.cuh"
#include "resnet/gpu/unit_kernels.hpp"
#include "resnet/gpu/wgmma.cuh"

namespace shakedown::gpu {
namespace {

/// With kAdds what y gives is added to dy.
template <unsigned channels, unsigned columns, unsigned pipes, unsigned stages, unsigned registers,
          unsigned producer_registers>
struct GradientPipes
    : Pipes<channels, columns, columns, (gram_in_two(channels) ? 1 : 5) * channels / kTileDepth,
            pipes, stages, registers, producer_registers> {
  static constexpr bool kAdds = gram_in_two(channels);
  static constexpr unsigned kStepsOfY = channels / kTileDepth;
};
template <int channels>
using PipesOf =
    std::conditional_t<channels == 64, GradientPipes<64, 64, 3, 5, 160, 32>,
                       std::conditional_t<channels == 128, GradientPipes<128, 128, 2, 4, 232, 40>,
                                          GradientPipes<256, 64, 3, 4, 160, 32>>>;

/// Calls body.operator()<channels>() with the channels of y.
template <class Body>
auto with_channels(int channels, Body&& body) {
  return with_constant<64, 128, 256>(channels, body);
}

template <class T>
struct GramGradient {
  unsigned rows;
  const float* unscale;
  const float* bias;
  const T* z;  // rows x channels, as dy
  T* dy;
  NormVectors norm;
  float* partials;  // gridDim.x x 2 x channels
};

/// One thread: fills the ring of a pipe, and at first the weights.
template <class P, class T>
__device__ void produce(const GramGradient<T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles, const CUtensorMap* y, const CUtensorMap* g,
                        const CUtensorMap* weights) {
  unsigned turn = 0;  // of stages
  bool has_weights = pipe != 0;
  for (unsigned tile = blockIdx.x * P::kPipes + pipe; tile < tiles; tile += gridDim.x * P::kPipes)
    for (unsigned step = 0; step < P::kSteps; ++step, ++turn) {
      const unsigned stage = turn % P::kStages;
      if (turn >= P::kStages) wait_for(at.empty(pipe, stage), (turn / P::kStages - 1) & 1U);
      const bool of_y = step < P::kStepsOfY;
      arrive_and_expect(at.full(pipe, stage), kTileBytes);
      copy_box(at.tile(pipe, stage), of_y ? y : g, (of_y ? step : step - P::kStepsOfY) * kTileDepth,
               tile * kTileRows, at.full(pipe, stage));
      // after the first tiles: both are needed to begin
      if (has_weights || (turn + 1 < P::kStages && step + 1 < P::kSteps)) continue;
      arrive_and_expect(at.weights_full(), P::kSteps * P::kStepBytes);
      for (unsigned i = 0; i < P::kSteps; ++i)
        copy_box(at.weights + i * P::kStepBytes, weights, i * kTileDepth, P::first_column(),
                 at.weights_full());
      has_weights = true;
    }
}

/// z becomes dy; adds it and dy (z - mean) to the sums. With kAdds `added` is of the product.
template <class P, class T>
__device__ void finish(const GramGradient<T>& p, const GroupProduct<P, T>& product,
                       const Fragment<P, T>& added, Fragment<P, T>& z,
                       float (&sums)[2][P::kColumns / 32][8]) {
#pragma unroll
  for (unsigned q = 0; q < P::kColumns / 32; ++q)
#pragma unroll
    for (unsigned four = 0; four < 8; four += 4) {
      const unsigned c = z.channel(q) + four;
      const auto bias = Vector<float, 4>::load(p.bias + c);
      const auto scale = Vector<float, 4>::load(p.norm.scale + c);
      const auto shift = Vector<float, 4>::load(p.norm.shift + c);
      const auto mean = Vector<float, 4>::load(p.norm.mean + c);
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        // beyond the end it has the last row's z: a NaN in it is in the sums anyway
        const bool exists = z.row_of(half) < p.rows;
#pragma unroll
        for (unsigned v = 0; v < 4; ++v) {
          T& out = z.vector[q][half].x[four + v];
          const float value = to_float(out);
          const bool passes = exists && relu_passes(value * scale.x[v] + shift.x[v]);
          float sum = product.at(q, half, four + v) + bias.x[v];
          if constexpr (P::kAdds) sum += to_float(added.vector[q][half].x[four + v]);
          out = from_float<T>(passes ? sum : 0.0F);
          const float gradient = to_float(out);
          sums[0][q][four + v] += gradient;
          sums[1][q][four + v] += gradient * (value - mean.x[v]);
        }
      }
    }
}

template <class P, class T>
__device__ void consume(const GramGradient<T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles) {
  const float unscale = *p.unscale;
  float sums[2][P::kColumns / 32][8] = {};
  unsigned turn = 0;
  bool has_weights = false;
  for (unsigned tile = blockIdx.x * P::kPipes + pipe; tile < tiles; tile += gridDim.x * P::kPipes) {
    Fragment<P, T> fragment;
    fragment.first_row = tile * kTileRows;
    fragment.column = P::first_column();
    fragment.load(p.z, p.rows);
    Fragment<P, T> added = fragment;
    if constexpr (P::kAdds) added.load(p.dy, p.rows);
    if (!has_weights) wait_for(at.weights_full(), 0);
    has_weights = true;
    GroupProduct<P, T> product;
    product.add(at, pipe, 0, P::kStepsOfY, turn);
#pragma unroll
    for (float& x : product.x) x *= unscale;
    pin(product.x);
    if constexpr (!P::kAdds) product.add(at, pipe, P::kStepsOfY, P::kSteps, turn);
    finish(p, product, added, fragment, sums);
    fragment.store(p.dy, p.rows);
  }
  write_group_sums<P>(sums, at, pipe,
                      p.partials + std::size_t{blockIdx.x} * 2 * P::kChannels + P::first_column());
}

template <class T, class P>
__global__ void __launch_bounds__(P::kBlockThreads, 1)
    gram_gradient_kernel(const __grid_constant__ CUtensorMap y,
                         const __grid_constant__ CUtensorMap g,
                         const __grid_constant__ CUtensorMap weights, const GramGradient<T> p) {
  extern __shared__ unsigned char memory[];
  const Places<P> at(shared_address(memory));
  const unsigned group = threadIdx.x / kGroupThreads;
  const unsigned tiles = (p.rows + kTileRows - 1) / kTileRows;
  if (threadIdx.x == 0) at.make_barriers();
  __syncthreads();
  if (group < P::kPipes) {
    take_registers<P::kRegisters>();
    consume<P>(p, at, group, tiles);
  } else {
    give_registers_back<P::kProducerRegisters>();
    const unsigned pipe = threadIdx.x / 32 % 4;
    if (threadIdx.x % 32 == 0 && pipe < P::kPipes) produce<P>(p, at, pipe, tiles, &y, &g, &weights);
  }
}

}  // namespace

bool has_gram_conv_relu_backward(DataType type, int channels, int filters) {
  return size_of(type) == 2 && filters == 4 * channels &&
         (channels == 64 || channels == 128 || channels == 256) &&
         with_channels(channels, [&]<int kChannels>() {
           using P = PipesOf<kChannels>;
           return runs_on_hopper(gram_gradient_kernel<__half, P>, P::kSharedBytes);
         });
}

int gram_conv_relu_backward(const GramMatrices& m, const void* y, const void* g, const void* z,
                            const NormVectors& norm, void* dy, float* partials, const Launch& on) {
  const auto run = [&]<class T, class P>() {
    const auto kernel = gram_gradient_kernel<T, P>;
    constexpr unsigned kAcross = P::kChannels / P::kColumns;
    const auto rows = static_cast<unsigned>(on.shape.count() / P::kChannels);
    const unsigned tiles = (rows + kTileRows - 1) / kTileRows;
    const unsigned blocks =
        std::min(multiprocessors() / kAcross, (tiles + P::kPipes - 1) / P::kPipes);
    ENSURE(blocks * 2 * P::kChannels <= reduction_scratch(on.shape, on.type, 2),
           "room for partial sums");
    blocks_at_once(kernel, P::kBlockThreads, P::kSharedBytes);
    kernel<<<dim3(blocks, kAcross), P::kBlockThreads, P::kSharedBytes, on.stream>>>(
        matrix_of(y, on.type, P::kChannels, rows, kTileRows),
        matrix_of(g, on.type, static_cast<std::uint64_t>(m.filters), rows, kTileRows),
        matrix_of(m.placed, on.type, P::kSteps * kTileDepth, P::kChannels, P::kColumns),
        GramGradient<T>{rows, m.unscale, m.bias, as<T>(z), as<T>(dy), norm, partials});
    CHECK_LAUNCH();
    return static_cast<int>(blocks);
  };
  return with_16_bits(on.type, [&]<class T>(T) {
    return with_channels(m.channels, [&]<int kChannels>() {
      return run.template operator()<T, PipesOf<kChannels>>();
    });
  });
}

// Mean and variance of a convolution's output from sums over its input (unit_kernels.hpp).

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
                     const NormParameters& norm, const NormVectors& vectors, const Launch& on) {
  const auto filters = static_cast<unsigned>(on.shape.c);
  ENSURE(filters % kFilters == 0, "filters of a norm through the Gram matrix");
  with_type(on.type, [&]<class T>(T) {
    with_channels(channels, [&]<int kChannels>() {
      using Of = Tiles<kChannels>;
      const auto kernel = gram_statistics_kernel<T, kChannels>;
      CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(Of::kBytes)));
      kernel<<<filters / kFilters, Of::kThreads, Of::kBytes, on.stream>>>(
          as<T>(w), gram, sum_of_y, Count::of(on.shape), norm, vectors);
      CHECK_LAUNCH();
    });
  });
}

bool gram_pays(std::size_t bytes_of_z) {
  return static_cast<double>(bytes_of_z) > kLeastShareOfL2 * attribute(cudaDevAttrL2CacheSize);
}

}  // namespace shakedown::gpu
