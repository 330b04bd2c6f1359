// Matrix products on tensor cores for fused kernels: 16-bit elements, float32 accumulators
// (mma.m16n8k16 and cp.async, Ampere or newer; built for an older GPU such a kernel traps, and
// runs_kernel() is false).
//
// A warp computes a 32 x 32 tile. Both factors lie in shared memory, in rows of 16-byte chunks. A
// thread's fragment of the tile is four rows, eight apart, starting at lane / 4, of eight adjacent
// columns, starting at lane % 4 * 8: 16 bytes of every tensor of the epilogue.
#pragma once

#include <type_traits>

#include "common/ensure.hpp"
#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {

inline constexpr unsigned kWarpTile = 32;

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define SHAKEDOWN_FROM_AMPERE(...) asm volatile(__VA_ARGS__)
#else
#define SHAKEDOWN_FROM_AMPERE(...) __trap()
#endif

/// Starts an asynchronous copy of 16 bytes, or zeros, to shared memory; it joins the open group.
__device__ inline void copy_16(unsigned to, const void* from, bool exists) {
  SHAKEDOWN_FROM_AMPERE("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                        "r"(exists ? 16 : 0)
                        : "memory");
}
__device__ inline void commit_copies() {
  SHAKEDOWN_FROM_AMPERE("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kInFlight groups of this thread's copies are incomplete.
template <int kInFlight>
__device__ void wait_for_copies() {
  SHAKEDOWN_FROM_AMPERE("cp.async.wait_group %0;" ::"n"(kInFlight) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&to)[4], unsigned address) {
  SHAKEDOWN_FROM_AMPERE("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                        : "r"(address)
                        : "memory");
}
__device__ inline void load_transposed(unsigned (&to)[4], unsigned address) {
  SHAKEDOWN_FROM_AMPERE("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                        : "r"(address)
                        : "memory");
}

/// c += a b: 16 x 8 += 16 x 16 times 16 x 8.
#define SHAKEDOWN_MMA(type)                                                          \
  SHAKEDOWN_FROM_AMPERE("mma.sync.aligned.m16n8k16.row.col.f32." type "." type       \
                        ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])             \
                        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_MMA("f16");
  else
    SHAKEDOWN_MMA("bf16");
}
#undef SHAKEDOWN_MMA
#undef SHAKEDOWN_FROM_AMPERE

/// Byte offset of a 16-byte chunk in shared memory. Rows are swizzled: the same chunk of eight rows
/// lies in different banks.
template <unsigned kChunks>
__device__ unsigned swizzled_offset(unsigned row, unsigned chunk) {
  return (row * kChunks + (chunk ^ (row & 7U))) * 16;
}

/// Loads columns of the weights (depth x channels) into shared memory; every thread of the block
/// calls it. Of 32 columns, 8 t + 2 g + e is stored as column 8 g + 2 t + e: of each of a warp's
/// four 8-column products g, thread t holds columns 2 t and 2 t + 1, which makes its eight
/// adjacent.
template <class T, unsigned kColumns>
__device__ void load_weights(const T* w, unsigned depth, unsigned channels, unsigned char* to) {
  constexpr unsigned kChunks = kColumns / 8;
  for (unsigned i = threadIdx.x; i < depth * kChunks; i += blockDim.x) {
    const unsigned k = i / kChunks;
    const unsigned chunk = i % kChunks;
    const auto pack = Vector<unsigned, 4>::load(
        reinterpret_cast<const unsigned*>(w + std::size_t{k} * channels + chunk * 8));
#pragma unroll
    for (unsigned g = 0; g < 4; ++g)
      *reinterpret_cast<unsigned*>(to + swizzled_offset<kChunks>(k, chunk / 4 * 4 + g) +
                                   chunk % 4 * 4) = pack.x[g];
  }
}

/// The left factor (rows x depth) on its way through shared memory: tiles of kRows rows, kDepth of
/// their columns a stage, kStages of them. A block has the tiles from blockIdx.y on, gridDim.y
/// apart.
template <class T, unsigned kRows, unsigned kDepth, unsigned kStages>
struct Ring {
  static constexpr unsigned kStageBytes = kRows * kDepth * 2;
  static constexpr unsigned kBytes = kStages * kStageBytes;
  const T* from;
  unsigned rows;
  unsigned depth;
  unsigned at;  // in shared memory
  unsigned tiles;
  bool backwards;  // the last tile first
  unsigned next_tile = blockIdx.y;
  unsigned next_depth = 0;
  unsigned next_stage = 0;
  unsigned stage = 0;

  __device__ Ring(const T* left, unsigned of_rows, unsigned of_depth, unsigned address,
                  bool from_the_end = false)
      : from(left),
        rows(of_rows),
        depth(of_depth),
        at(address),
        tiles((of_rows + kRows - 1) / kRows),
        backwards(from_the_end) {}

  __device__ unsigned first_row(unsigned tile) const {
    return (backwards ? tiles - 1 - tile : tile) * kRows;
  }
  /// Starts to load the first stages.
  __device__ void begin() {
    for (unsigned i = 0; i + 1 < kStages; ++i) fetch();
  }
  /// Waits for the next stage, and starts to load the one after those in flight. Returns its place.
  __device__ unsigned next() {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage has arrived, and all warps have used the one before
    fetch();
    const unsigned place = at + stage * kStageBytes;
    stage = (stage + 1) % kStages;
    return place;
  }

 private:
  __device__ void fetch() {
    if (next_tile < tiles) {
#pragma unroll
      for (unsigned i = threadIdx.x; i < kRows * kDepth / 8; i += kThreads) {
        const unsigned row = i / (kDepth / 8);
        const unsigned chunk = i % (kDepth / 8);
        const unsigned read = first_row(next_tile) + row;
        copy_16(at + next_stage * kStageBytes + swizzled_offset<kDepth / 8>(row, chunk),
                from + std::size_t{read < rows ? read : 0} * depth + next_depth + chunk * 8,
                read < rows);
      }
      next_depth += kDepth;
      if (next_depth == depth) {
        next_depth = 0;
        next_tile += gridDim.y;
      }
    }
    next_stage = (next_stage + 1) % kStages;
    commit_copies();  // empty at the end: the count stays right
  }
};

/// How weights (depth x kColumns) are stored in shared memory: as load_weights leaves them, or in
/// slabs of kDepth rows, a slab's columns one after the other.
enum class Stored { by_row, by_column };

/// A warp's accumulators.
struct WarpProduct {
  float x[2][4][4] = {};  // [16 rows][8 columns][this thread's four of them]

  /// Row 0 to 3 and column 0 to 7 of the thread's fragment.
  __device__ float at(int row, int v) const { return x[row / 2][v / 2][row % 2 * 2 + v % 2]; }

  /// Adds the warp's rows of a stage of the left factor, kDepth wide, times its columns of as many
  /// rows of the weights, from `depth` on.
  template <class T, unsigned kDepth, unsigned kColumns, Stored kWeights = Stored::by_row>
  __device__ void add(unsigned stage, unsigned warp_row, unsigned weights, unsigned depth,
                      unsigned warp_column) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (unsigned k = 0; k < kDepth; k += 16) {
      unsigned a[2][4];
      unsigned b[2][4];
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        load_matrices(a[i], stage + swizzled_offset<kDepth / 8>(warp_row + i * 16 + lane % 16,
                                                                k / 8 + lane / 16));
        if constexpr (kWeights == Stored::by_row)
          load_transposed(
              b[i], weights + swizzled_offset<kColumns / 8>(depth + k + lane % 16,
                                                            warp_column / 8 + i * 2 + lane / 16));
        else
          load_matrices(
              b[i], weights + depth * kColumns * 2 +
                        swizzled_offset<kDepth / 8>(warp_column + i * 16 + lane / 16 * 8 + lane % 8,
                                                    k / 8 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int g = 0; g < 4; ++g)
          multiply<T>(x[i][g], a[i], b[g / 2][g % 2 * 2], b[g / 2][g % 2 * 2 + 1]);
    }
  }
};

/// Adds up the sums that a block's threads have of their columns, in a fixed order. `scratch` is
/// shared memory for kSums x kColumns floats of each of kDown warps below one another. What
/// `partials` gets is this block's: kSums rows of `channels`.
template <int kSums, unsigned kColumns, unsigned kDown>
__device__ void write_sums(const float (&sums)[kSums][8], unsigned warp_down, unsigned warp_column,
                           float* scratch, float* partials, unsigned channels) {
  const unsigned lane = threadIdx.x % 32;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSums; ++i)
#pragma unroll
    for (int v = 0; v < 8; ++v) {
      float sum = sums[i][v];
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(~0U, sum, step);
      if (lane < 4) scratch[(warp_down * kSums + i) * kColumns + warp_column + lane * 8 + v] = sum;
    }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kSums * kColumns; i += blockDim.x) {
    float total = 0;
    for (unsigned down = 0; down < kDown; ++down) total += scratch[down * kSums * kColumns + i];
    partials[i / kColumns * channels + i % kColumns] = total;
  }
}

/// Whether the device can run the kernel, as it is built, with so much shared memory.
template <class Kernel>
bool runs_kernel(Kernel kernel, std::size_t shared_bytes) {
  cudaFuncAttributes built{};
  CHECK_CUDA(cudaFuncGetAttributes(&built, kernel));
  return built.ptxVersion >= 80 &&
         shared_bytes <=
             static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin));
}

/// How many blocks with so much shared memory a multiprocessor holds; lets the kernel have it.
template <class Kernel>
unsigned blocks_at_once(Kernel kernel, int threads, std::size_t shared_bytes) {
  CHECK_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  int blocks = 0;
  CHECK_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  ENSURE(blocks > 0, "a kernel on tensor cores: what runs_kernel allows fits");
  return static_cast<unsigned>(blocks);
}

/// Calls body(T{}) with the 16-bit type that `type` names.
template <class Body>
auto with_16_bits(DataType type, Body&& body) {
  ENSURE(size_of(type) == 2, "a product on tensor cores: of 16-bit elements");
  return type == DataType::float16 ? body(__half{}) : body(__nv_bfloat16{});
}

}  // namespace shakedown::gpu
