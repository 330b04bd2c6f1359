// The gradient inside a block, where its last convolution is 1x1 of stride 1, through the norm
// after it by the Gram matrix (gram_kernels.hpp): one product of [y | g], the mask of the ReLU
// before the convolution and the sums for that ReLU's norm. Compiled for sm_90a alone.
#include "resnet/gpu/fragment_places.hpp"
#include "resnet/gpu/gram_kernels.hpp"
#include "resnet/gpu/hopper_tensor_cores.cuh"

namespace shakedown::gpu {
namespace {

constexpr unsigned kGroupThreads = 128;  // of a warpgroup

/// A block has kPipes warpgroups, each with tiles of 64 rows and a ring of kStages tiles of [y | g]
/// that one warp of a last warpgroup fills; the weights stay in shared memory.
template <unsigned columns, unsigned pipes, unsigned stages, unsigned registers,
          unsigned producer_registers>
struct Pipes {
  static constexpr unsigned kColumns = columns;
  static constexpr unsigned kPipes = pipes;
  static constexpr unsigned kStages = stages;
  static constexpr unsigned kRegisters = registers;  // of a thread that multiplies
  static constexpr unsigned kProducerRegisters = producer_registers;
  static constexpr unsigned kBlockThreads = (kPipes + 1) * kGroupThreads;
  static constexpr unsigned kStepBytes = kColumns * kTileDepth * 2;  // of the weights
  static constexpr unsigned kRingBytes = kStages * kTileBytes;
  static constexpr unsigned kBarrierBytes = (2 * kPipes * kStages + 1) * 8;

  static unsigned shared_bytes(unsigned steps) {
    return kSharedAlignment + steps * kStepBytes + kPipes * kRingBytes + kBarrierBytes;
  }
};
using Pipes64 = Pipes<64, 3, 5, 160, 32>;
using Pipes128 = Pipes<128, 2, 4, 232, 40>;

template <class T>
struct GramGradient {
  unsigned rows;
  unsigned steps_of_y;  // of 64 columns of [y | g]
  unsigned steps;
  const float* unscale;
  const float* bias;
  const T* z;  // rows x columns, as dy
  T* dy;
  NormVectors norm;
  float* partials;  // gridDim.x x 2 x columns
};

/// Places in shared memory.
template <class P>
struct Places {
  unsigned weights;
  unsigned rings;
  unsigned barriers;

  __device__ Places(unsigned memory, unsigned steps)
      : weights((memory + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment),
        rings(weights + steps * P::kStepBytes),
        barriers(rings + P::kPipes * P::kRingBytes) {}
  __device__ unsigned tile(unsigned pipe, unsigned stage) const {
    return rings + pipe * P::kRingBytes + stage * kTileBytes;
  }
  __device__ unsigned full(unsigned pipe, unsigned stage) const {
    return barriers + (pipe * P::kStages + stage) * 8;
  }
  __device__ unsigned empty(unsigned pipe, unsigned stage) const {
    return full(P::kPipes + pipe, stage);
  }
  __device__ unsigned weights_full() const { return full(2 * P::kPipes, 0); }
};

/// One thread: fills the ring of a pipe, and at first the weights.
template <class P, class T>
__device__ void produce(const GramGradient<T>& p, const Places<P>& at, unsigned pipe,
                        unsigned tiles, const CUtensorMap* y, const CUtensorMap* g,
                        const CUtensorMap* weights) {
  unsigned turn = 0;  // of stages
  bool has_weights = pipe != 0;
  for (unsigned tile = blockIdx.x * P::kPipes + pipe; tile < tiles; tile += gridDim.x * P::kPipes)
    for (unsigned step = 0; step < p.steps; ++step, ++turn) {
      const unsigned stage = turn % P::kStages;
      if (turn >= P::kStages) wait_for(at.empty(pipe, stage), (turn / P::kStages - 1) & 1U);
      const bool of_y = step < p.steps_of_y;
      arrive_and_expect(at.full(pipe, stage), kTileBytes);
      copy_box(at.tile(pipe, stage), of_y ? y : g, (of_y ? step : step - p.steps_of_y) * kTileDepth,
               tile * kTileRows, at.full(pipe, stage));
      // after the first tiles: both are needed to begin
      if (has_weights || (turn + 1 < P::kStages && step + 1 < p.steps)) continue;
      arrive_and_expect(at.weights_full(), p.steps * P::kStepBytes);
      for (unsigned i = 0; i < p.steps; ++i)
        copy_box(at.weights + i * P::kStepBytes, weights, i * kTileDepth, 0, at.weights_full());
      has_weights = true;
    }
}

/// A warpgroup's accumulators: 64 rows of all columns.
template <class P, class T>
struct GroupProduct {
  static constexpr int kCount = P::kColumns / 2;
  float x[kCount];

  /// Half 0 or 1 (rows lane / 4 and 8 more), column v of the eight of group q that are adjacent.
  __device__ float at(unsigned q, unsigned half, unsigned v) const {
    return x[accumulator_of(q, half, v)];
  }
  /// Adds the steps [from, to) of a tile; `turn` counts stages.
  __device__ void add(const Places<P>& at, unsigned pipe, unsigned from, unsigned to,
                      unsigned& turn) {
    const auto release = [&](unsigned used) {
      if (threadIdx.x % 32 == 0) arrive(at.empty(pipe, used % P::kStages));
    };
    for (unsigned step = from; step < to; ++step, ++turn) {
      const unsigned stage = turn % P::kStages;
      wait_for(at.full(pipe, stage), turn / P::kStages & 1U);
      const std::uint64_t a = matrix_at(at.tile(pipe, stage));
      const std::uint64_t b = matrix_at(at.weights + step * P::kStepBytes);
      fence_products();
#pragma unroll
      for (unsigned k = 0; k < kTileDepth / 16; ++k)
        multiply_wide<T>(x, a + k * kNextSixteen, b + k * kNextSixteen, step + k == 0);
      commit_products();
      if (step == from) continue;
      wait_for_products<1>();
      release(turn - 1);
    }
    wait_for_products<0>();
    pin(x);
    release(turn - 1);
  }
};

/// A thread's vectors of z in a tile, then of dy: eight channels of two rows, for each 32 columns.
template <class P, class T>
struct Fragment {
  static constexpr unsigned kGroups = P::kColumns / 32;
  unsigned tile;
  Pack<T> vector[kGroups][2];

  __device__ unsigned row_of(unsigned half) const {
    return tile * kTileRows + fragment_row(threadIdx.x, half);
  }
  __device__ std::size_t element(unsigned row, unsigned q) const {
    return std::size_t{row} * P::kColumns + q * 32 + fragment_column(threadIdx.x);
  }
  __device__ void load(const T* from, unsigned rows) {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        vector[q][half] = Pack<T>::load(from + element(min(row_of(half), rows - 1), q));
  }
  __device__ void store(T* to, unsigned rows) const {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        if (row_of(half) < rows) vector[q][half].store(to + element(row_of(half), q));
  }

  /// z becomes dy; adds it and dy (z - mean) to the sums.
  __device__ void finish(const GramGradient<T>& p, const GroupProduct<P, T>& product,
                         float (&sums)[2][kGroups][8]) {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q)
#pragma unroll
      for (unsigned four = 0; four < 8; four += 4) {
        const unsigned c = q * 32 + fragment_column(threadIdx.x) + four;
        const auto bias = Vector<float, 4>::load(p.bias + c);
        const auto scale = Vector<float, 4>::load(p.norm.scale + c);
        const auto shift = Vector<float, 4>::load(p.norm.shift + c);
        const auto mean = Vector<float, 4>::load(p.norm.mean + c);
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
          // beyond the end it has the last row's z: a NaN in it is in the sums anyway
          const bool exists = row_of(half) < p.rows;
#pragma unroll
          for (unsigned v = 0; v < 4; ++v) {
            T& out = vector[q][half].x[four + v];
            const float value = to_float(out);
            const bool passes = exists && relu_passes(value * scale.x[v] + shift.x[v]);
            out = from_float<T>(passes ? product.at(q, half, four + v) + bias.x[v] : 0.0F);
            const float gradient = to_float(out);
            sums[0][q][four + v] += gradient;
            sums[1][q][four + v] += gradient * (value - mean.x[v]);
          }
        }
      }
  }
};

/// Adds up the sums of the block's warpgroups in a fixed order; each leaves its own in its ring.
template <class P>
__device__ void write_group_sums(const float (&sums)[2][P::kColumns / 32][8], const Places<P>& at,
                                 unsigned pipe, float* partials) {
  constexpr unsigned kValues = 2 * P::kColumns;
  const unsigned lane = threadIdx.x % 32;
  const auto place = [&](unsigned of_pipe, unsigned warp, unsigned value) {
    return at.tile(of_pipe, 0) + (warp * kValues + value) * 4;
  };
  synchronise_some(2 + pipe, kGroupThreads);  // no warp of the group reads the ring any more
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (unsigned q = 0; q < P::kColumns / 32; ++q)
#pragma unroll
      for (unsigned v = 0; v < 8; ++v) {
        float sum = sums[i][q][v];
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        const unsigned value = static_cast<unsigned>(i) * P::kColumns + q * 32 + lane % 4 * 8 + v;
        if (lane < 4) store_shared(place(pipe, threadIdx.x / 32 % 4, value), sum);
      }
  synchronise_some(1, P::kPipes * kGroupThreads);
  for (unsigned value = threadIdx.x; value < kValues; value += P::kPipes * kGroupThreads) {
    float total = 0;
    for (unsigned of_pipe = 0; of_pipe < P::kPipes; ++of_pipe)
      for (unsigned warp = 0; warp < 4; ++warp) total += load_shared(place(of_pipe, warp, value));
    partials[value] = total;
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
    fragment.tile = tile;
    fragment.load(p.z, p.rows);
    if (!has_weights) wait_for(at.weights_full(), 0);
    has_weights = true;
    GroupProduct<P, T> product;
    product.add(at, pipe, 0, p.steps_of_y, turn);
#pragma unroll
    for (float& x : product.x) x *= unscale;
    pin(product.x);
    product.add(at, pipe, p.steps_of_y, p.steps, turn);
    fragment.finish(p, product, sums);
    fragment.store(p.dy, p.rows);
  }
  write_group_sums<P>(sums, at, pipe, p.partials + std::size_t{blockIdx.x} * 2 * P::kColumns);
}

template <class T, class P>
__global__ void __launch_bounds__(P::kBlockThreads, 1)
    gram_gradient_kernel(const __grid_constant__ CUtensorMap y,
                         const __grid_constant__ CUtensorMap g,
                         const __grid_constant__ CUtensorMap weights, const GramGradient<T> p) {
  extern __shared__ unsigned char memory[];
  const Places<P> at(shared_address(memory), p.steps);
  const unsigned group = threadIdx.x / kGroupThreads;
  const unsigned tiles = (p.rows + kTileRows - 1) / kTileRows;
  if (threadIdx.x == 0) {
    for (unsigned pipe = 0; pipe < P::kPipes; ++pipe)
      for (unsigned stage = 0; stage < P::kStages; ++stage) {
        make_barrier(at.full(pipe, stage), 1);
        make_barrier(at.empty(pipe, stage), 4);  // warps
      }
    make_barrier(at.weights_full(), 1);
    publish_barriers();
  }
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

template <class T, class P>
int launch(const GramMatrices& m, const void* y, const void* g, const void* z,
           const NormVectors& norm, void* dy, const ActivationShape& shape, DataType type,
           float* partials, cudaStream_t stream) {
  const auto kernel = gram_gradient_kernel<T, P>;
  const auto channels = static_cast<unsigned>(m.channels);
  const unsigned depth = channels + static_cast<unsigned>(m.filters);
  const unsigned bytes = P::shared_bytes(depth / kTileDepth);
  const auto rows = static_cast<unsigned>(shape.count() / channels);
  const unsigned tiles = (rows + kTileRows - 1) / kTileRows;
  const unsigned blocks = std::min(multiprocessors(), (tiles + P::kPipes - 1) / P::kPipes);
  ENSURE(blocks * 2 * channels <= reduction_scratch(shape, type, 2), "room for partial sums");
  blocks_at_once(kernel, P::kBlockThreads, bytes);
  kernel<<<blocks, P::kBlockThreads, bytes, stream>>>(
      matrix_of(y, type, channels, rows, kTileRows),
      matrix_of(g, type, static_cast<std::uint64_t>(m.filters), rows, kTileRows),
      matrix_of(m.placed, type, depth, channels, channels),
      GramGradient<T>{rows, channels / kTileDepth, depth / kTileDepth, m.unscale, m.bias,
                      static_cast<const T*>(z), static_cast<T*>(dy), norm, partials});
  CHECK_LAUNCH();
  return static_cast<int>(blocks);
}

template <class P>
bool fits(int depth) {
  cudaFuncAttributes built{};
  if (cudaFuncGetAttributes(&built, gram_gradient_kernel<__half, P>) != cudaSuccess) {
    cudaGetLastError();  // compiled for another GPU
    return false;
  }
  return P::shared_bytes(static_cast<unsigned>(depth) / kTileDepth) <=
         static_cast<unsigned>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

}  // namespace

bool has_gram_conv_relu_backward(DataType type, int channels, int filters) {
  return size_of(type) == 2 && filters == 4 * channels &&
         ((channels == 64 && fits<Pipes64>(channels + filters)) ||
          (channels == 128 && fits<Pipes128>(channels + filters)));
}

int gram_conv_relu_backward(const GramMatrices& matrices, const void* y, const void* g,
                            const void* z, const NormVectors& norm, void* dy,
                            const ActivationShape& shape, DataType type, float* partials,
                            cudaStream_t stream) {
  return with_16_bits(type, [&]<class T>(T) {
    const auto with = matrices.channels == 64 ? launch<T, Pipes64> : launch<T, Pipes128>;
    return with(matrices, y, g, z, norm, dy, shape, type, partials, stream);
  });
}

}  // namespace shakedown::gpu
