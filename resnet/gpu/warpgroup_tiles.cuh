// What kernels on wgmma share whose warpgroups compute tiles of 64 rows, each on its own: rings
// that one thread a warpgroup fills, products, the tensors of their epilogues and sums of these.
// Only for files that are compiled for sm_90a.
#pragma once

#include "resnet/gpu/fragment_places.hpp"
#include "resnet/gpu/hopper_tensor_cores.cuh"

namespace shakedown::gpu {

inline constexpr unsigned kGroupThreads = 128;  // of a warpgroup

/// A block has kPipes warpgroups, each with tiles of 64 rows, kWide columns of a product and a ring
/// of kStages tiles of what is multiplied, 64 columns each, that one warp of a last warpgroup
/// fills. Where the block has more columns than kWide, each warpgroup has its own of them and all
/// share one ring and its tiles of rows. The weights, of kSteps of these tiles, stay in shared
/// memory.
template <unsigned channels, unsigned columns, unsigned wide, unsigned steps, unsigned pipes,
          unsigned stages, unsigned registers, unsigned producer_registers>
struct Pipes {
  static constexpr unsigned kChannels = channels;
  static constexpr unsigned kColumns = columns;
  static constexpr unsigned kWide = wide;
  static constexpr unsigned kSteps = steps;
  static constexpr unsigned kDepth = steps * kTileDepth;
  static constexpr unsigned kPipes = pipes;
  static constexpr bool kOneRing = columns > wide;
  static_assert(!kOneRing || columns == pipes * wide);
  static constexpr unsigned kRings = kOneRing ? 1 : pipes;
  static constexpr unsigned kStages = stages;
  static constexpr unsigned kRegisters = registers;  // of a thread that multiplies
  static constexpr unsigned kProducerRegisters = producer_registers;
  static constexpr unsigned kBlockThreads = (kPipes + 1) * kGroupThreads;
  static constexpr unsigned kStepBytes = kColumns * kTileDepth * 2;  // of the weights
  static constexpr unsigned kRingBytes = kStages * kTileBytes;
  static constexpr unsigned kBarrierBytes = (2 * kRings * kStages + 1) * 8;
  static constexpr unsigned kSharedBytes =
      kSharedAlignment + kSteps * kStepBytes + kRings * kRingBytes + kBarrierBytes;

  __device__ static unsigned ring(unsigned pipe) { return kOneRing ? 0 : pipe; }
  /// Of this block's channels.
  __device__ static unsigned first_column() {
    return kColumns == kChannels ? 0 : blockIdx.y * kColumns;
  }
  /// Of the block's columns the warpgroup's first.
  __device__ static unsigned column_of(unsigned pipe) { return kOneRing ? pipe * kWide : 0; }
};

/// Places in shared memory.
template <class P>
struct Places {
  unsigned weights;
  unsigned rings;
  unsigned barriers;

  __device__ explicit Places(unsigned memory)
      : weights((memory + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment),
        rings(weights + P::kSteps * P::kStepBytes),
        barriers(rings + P::kRings * P::kRingBytes) {}
  __device__ unsigned tile(unsigned ring, unsigned stage) const {
    return rings + ring * P::kRingBytes + stage * kTileBytes;
  }
  __device__ unsigned full(unsigned ring, unsigned stage) const {
    return barriers + (ring * P::kStages + stage) * 8;
  }
  __device__ unsigned empty(unsigned ring, unsigned stage) const {
    return full(P::kRings + ring, stage);
  }
  __device__ unsigned weights_full() const { return full(2 * P::kRings, 0); }

  /// One thread, before the others use them.
  __device__ void make_barriers() const {
    for (unsigned ring = 0; ring < P::kRings; ++ring)
      for (unsigned stage = 0; stage < P::kStages; ++stage) {
        make_barrier(full(ring, stage), 1);
        make_barrier(empty(ring, stage), 4 * P::kPipes / P::kRings);  // warps
      }
    make_barrier(weights_full(), 1);
    publish_barriers();
  }
};

/// A warpgroup's accumulators: 64 rows of kWide columns.
template <class P, class T>
struct GroupProduct {
  static constexpr int kCount = P::kWide / 2;
  float x[kCount];

  /// Half 0 or 1 (rows lane / 4 and 8 more), column v of the eight of group q that are adjacent.
  __device__ float at(unsigned q, unsigned half, unsigned v) const {
    return x[accumulator_of(q, half, v)];
  }
  /// Adds the steps [from, to) of a tile; `turn` counts stages.
  __device__ void add(const Places<P>& at, unsigned pipe, unsigned from, unsigned to,
                      unsigned& turn) {
    const unsigned ring = P::ring(pipe);
    const unsigned weights = at.weights + P::column_of(pipe) * (kTileDepth * 2);
    const auto release = [&](unsigned used) {
      if (threadIdx.x % 32 == 0) arrive(at.empty(ring, used % P::kStages));
    };
    for (unsigned step = from; step < to; ++step, ++turn) {
      const unsigned stage = turn % P::kStages;
      wait_for(at.full(ring, stage), turn / P::kStages & 1U);
      const std::uint64_t a = matrix_at(at.tile(ring, stage));
      const std::uint64_t b = matrix_at(weights + step * P::kStepBytes);
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

/// A thread's vectors of a tensor in a tile: eight channels of two rows, for each 32 columns.
template <class P, class T>
struct Fragment {
  static constexpr unsigned kGroups = P::kWide / 32;
  unsigned first_row;
  unsigned column;  // of the channels
  Pack<T> vector[kGroups][2];

  __device__ unsigned row_of(unsigned half) const {
    return first_row + fragment_row(threadIdx.x, half);
  }
  __device__ unsigned channel(unsigned q) const {
    return column + q * 32 + fragment_column(threadIdx.x);
  }
  __device__ std::size_t element(unsigned row, unsigned q) const {
    return std::size_t{row} * P::kChannels + channel(q);
  }
  __device__ void load(const T* from, unsigned rows) {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half)
        vector[q][half] = Pack<T>::load(from + element(min(row_of(half), rows - 1), q));
  }
  /// Between a load in one round of a loop and its use in the next: the compiler would take the
  /// elements apart after the load, and wait for them there.
  __device__ void keep() {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q)
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        auto& words = reinterpret_cast<unsigned(&)[4]>(vector[q][half]);
        asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3]));
      }
  }
  __device__ void store(T* to, unsigned rows) const {
#pragma unroll
    for (unsigned q = 0; q < kGroups; ++q) store_group(q, to, rows);
  }
  __device__ void store_group(unsigned q, T* to, unsigned rows) const {
#pragma unroll
    for (unsigned half = 0; half < 2; ++half)
      if (row_of(half) < rows) vector[q][half].store(to + element(row_of(half), q));
  }
};

/// Adds up the sums of the block's warpgroups in a fixed order, through the rings. What `partials`
/// gets is this block's: kSums rows of kChannels.
template <class P, int kSums>
__device__ void write_group_sums(const float (&sums)[kSums][P::kWide / 32][8], const Places<P>& at,
                                 unsigned pipe, float* partials) {
  constexpr unsigned kValues = kSums * P::kWide;  // of a warp
  static_assert(P::kPipes * 4 * kValues * sizeof(float) <= P::kRings * P::kRingBytes);
  const unsigned lane = threadIdx.x % 32;
  const auto place = [&](unsigned of_pipe, unsigned warp, unsigned value) {
    return at.rings + ((of_pipe * 4 + warp) * kValues + value) * 4;
  };
  synchronise_some(1, P::kPipes * kGroupThreads);  // nobody reads the rings any more
#pragma unroll
  for (int i = 0; i < kSums; ++i)
#pragma unroll
    for (unsigned q = 0; q < P::kWide / 32; ++q)
#pragma unroll
      for (unsigned v = 0; v < 8; ++v) {
        float sum = sums[i][q][v];
        for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
        const unsigned value = static_cast<unsigned>(i) * P::kWide + q * 32 + lane % 4 * 8 + v;
        if (lane < 4) store_shared(place(pipe, threadIdx.x / 32 % 4, value), sum);
      }
  synchronise_some(1, P::kPipes * kGroupThreads);
  for (unsigned i = threadIdx.x; i < kSums * P::kColumns; i += P::kPipes * kGroupThreads) {
    const unsigned column = i % P::kColumns;
    const unsigned value = i / P::kColumns * P::kWide + column % P::kWide;
    float total = 0;
    for (unsigned of_pipe = 0; of_pipe < P::kPipes; ++of_pipe)
      if (!P::kOneRing || of_pipe == column / P::kWide)
        for (unsigned warp = 0; warp < 4; ++warp) total += load_shared(place(of_pipe, warp, value));
    partials[i / P::kColumns * P::kChannels + column] = total;
  }
}

/// Whether the device can run the kernel with so much shared memory.
template <class Kernel>
bool runs_on_hopper(Kernel kernel, unsigned shared_bytes) {
  cudaFuncAttributes built{};
  if (cudaFuncGetAttributes(&built, kernel) != cudaSuccess) {
    cudaGetLastError();  // compiled for another GPU
    return false;
  }
  return shared_bytes <= static_cast<unsigned>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

}  // namespace shakedown::gpu
