// Hopper's matrix products (wgmma) and bulk tensor copies (TMA): only for files that are compiled
// for sm_90a (Makefile). A warpgroup, four warps, multiplies tiles of 64 rows of 64 elements, which
// lie in shared memory in rows of 128 bytes with the 128-byte swizzle. Its thread has rows lane / 4
// and lane / 4 + 8 of its warp's 16.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "common/ensure.hpp"
#include "resnet/gpu/mma.cuh"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {

inline constexpr unsigned kTileRows = 64;
inline constexpr unsigned kTileDepth = 64;
inline constexpr unsigned kTileBytes = kTileRows * kTileDepth * 2;
inline constexpr unsigned kSharedAlignment = 1024;  // of tiles: the swizzle repeats after it

// ---- barriers in shared memory ------------------------------------------------------------------

__device__ inline void make_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// After the barriers are made, before other threads and copies use them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
/// After a thread's stores to shared memory that products read, before all that use them meet.
__device__ inline void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives; the phase ends when this number of bytes has been copied as well.
__device__ inline void arrive_and_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Waits for the end of a barrier's phase of this parity. Traps after seconds rather than hang.
__device__ inline void wait_for(unsigned barrier, unsigned parity) {
  constexpr unsigned kMostTries = 20'000'000;
  for (unsigned tries = 0; tries < kMostTries; ++tries) {
    unsigned done = 0;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
  }
  __trap();
}
/// Among `threads` threads that name the same of the block's barriers 1 to 15, those of arrive_some
/// included.
__device__ inline void synchronise_some(unsigned number, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
/// The same without waiting for the others.
__device__ inline void arrive_some(unsigned number, unsigned threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

__device__ inline void store_shared(unsigned to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
/// Two 16-bit elements.
template <class T>
__device__ void store_shared(unsigned to, const Vector<T, 2>& pair) {
  static_assert(sizeof(pair) == 4);
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(reinterpret_cast<const unsigned&>(pair))
               : "memory");
}
__device__ inline float load_shared(unsigned from) {
  float value = 0;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}

/// Four floats.
__device__ inline Vector<float, 4> load_shared_4(unsigned from) {
  Vector<float, 4> four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x[0]), "=f"(four.x[1]), "=f"(four.x[2]), "=f"(four.x[3])
               : "r"(from)
               : "memory");
  return four;
}

// ---- copies -------------------------------------------------------------------------------------

/// Starts a copy of a box of a matrix to shared memory; what lies outside of the matrix is zero.
__device__ inline void copy_box(unsigned to, const CUtensorMap* matrix, unsigned column,
                                unsigned row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(matrix), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// What copy_box copies from.

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's function, which no library here links.
inline EncodeTiled encode_tiled() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found));
#else
  CHECK_CUDA(
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
  ENSURE(found == cudaDriverEntryPointSuccess, "the driver's cuTensorMapEncodeTiled");
  return reinterpret_cast<EncodeTiled>(function);
}

/// A matrix for copy_box, in boxes of `box_rows` rows of 64 elements.
inline CUtensorMap matrix_of(const void* data, DataType type, std::uint64_t columns,
                             std::uint64_t rows, unsigned box_rows) {
  static const EncodeTiled encode = encode_tiled();
  const cuuint64_t size[] = {columns, rows};
  const cuuint64_t pitch[] = {columns * 2};
  const cuuint32_t box[] = {kTileDepth, box_rows};
  const cuuint32_t step[] = {1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map,
             type == DataType::float16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             2, const_cast<void*>(data), size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  ENSURE(result == CUDA_SUCCESS, "a tensor map of 16-bit rows");
  return map;
}

// ---- products -----------------------------------------------------------------------------------

/// What wgmma calls a matrix: rows of 64 elements as copy_box leaves them, eight rows 1,024 bytes
/// from the next eight. Its next 16 columns are 2 further on.
__device__ inline std::uint64_t matrix_at(unsigned address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  constexpr std::uint64_t kUnusedStride = std::uint64_t{1} << 16;
  return std::uint64_t{(address & 0x3FFFFU) >> 4} | kUnusedStride | kEightRows | kSwizzle128;
}
inline constexpr unsigned kNextSixteen = 2;

__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kInFlight>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kInFlight) : "memory");
}
/// The compiler moves no use of the accumulators across it.
template <int kCount>
__device__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

template <unsigned kRegisters>
__device__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <unsigned kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The text of an instruction has a name for each register.
#define SHAKEDOWN_FLOATS_8(i)                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define SHAKEDOWN_FLOATS_32(i)                                                  \
  SHAKEDOWN_FLOATS_8(i), SHAKEDOWN_FLOATS_8(i + 8), SHAKEDOWN_FLOATS_8(i + 16), \
      SHAKEDOWN_FLOATS_8(i + 24)
#define SHAKEDOWN_NAMES_32                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SHAKEDOWN_NAMES_64                   \
  SHAKEDOWN_NAMES_32                         \
  ", "                                       \
  "%32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define SHAKEDOWN_WGMMA(columns, type, names, of_a, of_b, adds, ...)                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " adds                                        \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names \
               "}, " of_a ", " of_b ", p, 1, 1, 0, 0;\n}\n"                                    \
               : __VA_ARGS__                                                                   \
               : "l"(a), "l"(b), "r"(fresh ? 0 : 1))

/// d (64 x 64) = a (64 x 16) b (16 x 64), added to d unless `fresh`.
template <class T>
__device__ void multiply_wide(float (&d)[32], std::uint64_t a, std::uint64_t b, bool fresh) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_WGMMA("64", "f16", SHAKEDOWN_NAMES_32, "%32", "%33", "%34", SHAKEDOWN_FLOATS_32(0));
  else
    SHAKEDOWN_WGMMA("64", "bf16", SHAKEDOWN_NAMES_32, "%32", "%33", "%34", SHAKEDOWN_FLOATS_32(0));
}
/// d (64 x 128) = a (64 x 16) b (16 x 128), added to d unless `fresh`.
template <class T>
__device__ void multiply_wide(float (&d)[64], std::uint64_t a, std::uint64_t b, bool fresh) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_WGMMA("128", "f16", SHAKEDOWN_NAMES_64, "%64", "%65", "%66", SHAKEDOWN_FLOATS_32(0),
                    SHAKEDOWN_FLOATS_32(32));
  else
    SHAKEDOWN_WGMMA("128", "bf16", SHAKEDOWN_NAMES_64, "%64", "%65", "%66", SHAKEDOWN_FLOATS_32(0),
                    SHAKEDOWN_FLOATS_32(32));
}
#undef SHAKEDOWN_WGMMA
#undef SHAKEDOWN_NAMES_64
#undef SHAKEDOWN_NAMES_32
#undef SHAKEDOWN_FLOATS_32
#undef SHAKEDOWN_FLOATS_8

// What kernels on wgmma share whose warpgroups compute tiles of 64 rows, each on its own: rings
// that one thread a warpgroup fills, products, the tensors of their epilogues and sums of these.
// Only for files that are compiled for sm_90a.

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
