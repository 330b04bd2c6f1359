// Hopper's matrix products (wgmma) and bulk tensor copies (TMA): only for files that are compiled
// for sm_90a (Makefile). A warpgroup, four warps, multiplies tiles of 64 rows of 64 elements, which
// lie in shared memory in rows of 128 bytes with the 128-byte swizzle. Its thread has rows lane / 4
// and lane / 4 + 8 of its warp's 16.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "resnet/gpu/tensor_cores.cuh"

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

/// d (64 x 64) = a (64 x 16) b (16 x 64), added to d unless `fresh`.
#define SHAKEDOWN_WGMMA_64(type)                                                                   \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                  \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                                           \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                                                   \
      "%24, %25, %26, %27, %28, %29, %30, %31"                                                     \
      "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                           \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                         \
      : "l"(a), "l"(b), "r"(fresh ? 0 : 1))
template <class T>
__device__ void multiply_wide(float (&d)[32], std::uint64_t a, std::uint64_t b, bool fresh) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_WGMMA_64("f16");
  else
    SHAKEDOWN_WGMMA_64("bf16");
}
#undef SHAKEDOWN_WGMMA_64

/// d (64 x 128) = a (64 x 16) b (16 x 128), added to d unless `fresh`.
#define SHAKEDOWN_WGMMA_128(type)                                                                  \
  asm volatile(                                                                                    \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                 \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, "                                                           \
      "%8, %9, %10, %11, %12, %13, %14, %15, "                                                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, "                                                   \
      "%24, %25, %26, %27, %28, %29, %30, %31, "                                                   \
      "%32, %33, %34, %35, %36, %37, %38, %39, "                                                   \
      "%40, %41, %42, %43, %44, %45, %46, %47, "                                                   \
      "%48, %49, %50, %51, %52, %53, %54, %55, "                                                   \
      "%56, %57, %58, %59, %60, %61, %62, %63"                                                     \
      "}, %64, %65, p, 1, 1, 0, 0;\n}\n"                                                           \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),        \
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),    \
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), \
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), \
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), \
        "+f"(d[63])                                                                                \
      : "l"(a), "l"(b), "r"(fresh ? 0 : 1))
template <class T>
__device__ void multiply_wide(float (&d)[64], std::uint64_t a, std::uint64_t b, bool fresh) {
  if constexpr (std::is_same_v<T, __half>)
    SHAKEDOWN_WGMMA_128("f16");
  else
    SHAKEDOWN_WGMMA_128("bf16");
}
#undef SHAKEDOWN_WGMMA_128

}  // namespace shakedown::gpu
