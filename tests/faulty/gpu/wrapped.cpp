// libfaulty.so, preloaded: the functions of cuBLAS, cuBLASLt, CUDA's runtime and driver and NCCL
// that are called in the place of the libraries' own. Each calls that, and then makes the faults.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/faulty/gpu/faulty.hpp"

namespace {

using namespace shakedown;
using namespace shakedown::faulty;

/// The signature is the caller's.
template <class Function>
Function next(const char* name, const char* library) {
  return reinterpret_cast<Function>(next_function(name, library));
}
#define NEXT(name, library) next<decltype(&name)>(#name, library)

struct Type {
  cudaDataType_t cuda;
  DataType type;
  int bytes;
  unsigned bit;  // of ProductFault::types, as an operand; 0: no operand's
};
constexpr Type kKnown[] = {{CUDA_R_64F, DataType::float64, 8, 1U << 0},
                           {CUDA_R_32F, DataType::float32, 4, 1U << 1},
                           {CUDA_R_16F, DataType::float16, 2, 1U << 3},
                           {CUDA_R_16BF, DataType::bfloat16, 2, 1U << 4},
                           {CUDA_R_8F_E4M3, DataType::float8_e4m3, 1, 1U << 5},
                           {CUDA_R_8F_E5M2, DataType::float8_e5m2, 1, 1U << 5},
                           {CUDA_R_8I, DataType::int8, 1, 1U << 6},
                           {CUDA_R_32I, DataType::int32, 4, 0}};
constexpr unsigned kTf32 = 1U << 2;

const Type* type_of(cudaDataType_t cuda) {
  for (const Type& known : kKnown)
    if (known.cuda == cuda) return &known;
  return nullptr;
}

/// A matrix as cuBLAS has them: by columns, `ld` elements from one to the next.
struct Matrix {
  const void* data;
  cudaDataType_t type;
  std::int64_t ld;
  bool transposed = false;  // as an operand
  bool by_rows = false;

  /// Of op(A): from row to row, from column to column.
  std::int64_t row_step() const { return transposed != by_rows ? ld : 1; }
  std::int64_t column_step() const { return transposed != by_rows ? 1 : ld; }
};

/// C[m, n] = op(A)[m, k] op(B)[k, n]. None: a type that has no faults.
std::optional<Product> product_of(std::int64_t m, std::int64_t n, std::int64_t k, const Matrix& a,
                                  const Matrix& b, void* c_data, const Matrix& c, bool tf32) {
  const Type *of_a = type_of(a.type), *of_b = type_of(b.type), *of_c = type_of(c.type);
  if (of_a == nullptr || of_b == nullptr || of_c == nullptr || of_a->bit == 0) return std::nullopt;
  return Product{{c_data,
                  m,
                  n,
                  c.row_step(),
                  c.column_step(),
                  of_c->type,
                  {a.data, a.row_step(), a.column_step(), k, of_a->bytes},
                  {b.data, b.column_step(), b.row_step(), k, of_b->bytes}},
                 tf32 && a.type == CUDA_R_32F ? kTf32 : of_a->bit};
}

bool is_tf32(cublasComputeType_t type) { return type == CUBLAS_COMPUTE_32F_FAST_TF32; }

CUstream stream_of(cublasHandle_t handle) {
  static const auto get = NEXT(cublasGetStream_v2, "libcublas.so");
  cudaStream_t stream = nullptr;
  get(handle, &stream);
  return stream;
}

bool has_tf32(cublasHandle_t handle) {
  static const auto get = NEXT(cublasGetMathMode, "libcublas.so");
  cublasMath_t mode = CUBLAS_DEFAULT_MATH;
  get(handle, &mode);
  return (static_cast<unsigned>(mode) & 0xFU) == CUBLAS_TF32_TENSOR_OP_MATH;
}

/// `call` is the library's function with its arguments.
template <class Call>
cublasStatus_t with_faults(const std::optional<Product>& product, CUstream stream,
                           const Call& call) {
  const cublasStatus_t status = call();
  if (product && status == CUBLAS_STATUS_SUCCESS) after_product(*product, stream);
  return status;
}

template <class T>
T attribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which) {
  static const auto get = NEXT(cublasLtMatrixLayoutGetAttribute, "libcublasLt.so");
  T value{};
  get(layout, which, &value, sizeof(value), nullptr);
  return value;
}
template <class T>
T attribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t which) {
  static const auto get = NEXT(cublasLtMatmulDescGetAttribute, "libcublasLt.so");
  T value{};
  get(description, which, &value, sizeof(value), nullptr);
  return value;
}

Matrix matrix_of(const void* data, cublasLtMatrixLayout_t layout, bool transposed) {
  return {
      data,
      static_cast<cudaDataType_t>(attribute<std::uint32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE)),
      attribute<std::int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD), transposed,
      attribute<std::int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_ROW};
}

/// None where a layout is neither by columns nor by rows.
std::optional<Product> product_of(cublasLtMatmulDesc_t description, const void* a_data,
                                  cublasLtMatrixLayout_t a, const void* b_data,
                                  cublasLtMatrixLayout_t b, void* d_data,
                                  cublasLtMatrixLayout_t d) {
  for (const cublasLtMatrixLayout_t layout : {a, b, d}) {
    const auto order = attribute<std::int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_ORDER);
    if (order != CUBLASLT_ORDER_COL && order != CUBLASLT_ORDER_ROW) return std::nullopt;
  }
  const bool a_transposed =
      attribute<std::int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSA) != CUBLAS_OP_N;
  const bool b_transposed =
      attribute<std::int32_t>(description, CUBLASLT_MATMUL_DESC_TRANSB) != CUBLAS_OP_N;
  const auto k = attribute<std::uint64_t>(
      a, a_transposed ? CUBLASLT_MATRIX_LAYOUT_ROWS : CUBLASLT_MATRIX_LAYOUT_COLS);
  const auto compute = attribute<std::int32_t>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE);
  return product_of(
      static_cast<std::int64_t>(attribute<std::uint64_t>(d, CUBLASLT_MATRIX_LAYOUT_ROWS)),
      static_cast<std::int64_t>(attribute<std::uint64_t>(d, CUBLASLT_MATRIX_LAYOUT_COLS)),
      static_cast<std::int64_t>(k), matrix_of(a_data, a, a_transposed),
      matrix_of(b_data, b, b_transposed), d_data, matrix_of(d_data, d, false),
      is_tf32(static_cast<cublasComputeType_t>(compute)));
}

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclBfloat16: return 2 * count;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4 * count;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8 * count;
    default: return count;
  }
}

struct Received {
  void* data;
  std::size_t bytes;
  cudaStream_t stream;
};
thread_local int groups = 0;  // that are open
thread_local std::vector<Received> in_group;

}  // namespace

extern "C" {

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void* alpha,
                            const void* A, cudaDataType Atype, int lda, const void* B,
                            cudaDataType Btype, int ldb, const void* beta, void* C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo) {
  using Function = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int,
                                      int, int, const void*, const void*, cudaDataType, int,
                                      const void*, cudaDataType, int, const void*, void*,
                                      cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  static const auto real = next<Function>("cublasGemmEx", "libcublas.so");
  const auto call = [&] {
    return real(handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C,
                Ctype, ldc, computeType, algo);
  };
  const Outermost outermost;
  if (!outermost) return call();
  return with_faults(product_of(m, n, k, {A, Atype, lda, transa != CUBLAS_OP_N},
                                {B, Btype, ldb, transb != CUBLAS_OP_N}, C, {C, Ctype, ldc},
                                is_tf32(computeType) || has_tf32(handle)),
                     stream_of(handle), call);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const float* alpha,
                              const float* A, int lda, const float* B, int ldb, const float* beta,
                              float* C, int ldc) {
  static const auto real = NEXT(cublasSgemm_v2, "libcublas.so");
  const auto call = [&] {
    return real(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
  };
  const Outermost outermost;
  if (!outermost) return call();
  return with_faults(product_of(m, n, k, {A, CUDA_R_32F, lda, transa != CUBLAS_OP_N},
                                {B, CUDA_R_32F, ldb, transb != CUBLAS_OP_N}, C,
                                {C, CUDA_R_32F, ldc}, has_tf32(handle)),
                     stream_of(handle), call);
}

cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const double* alpha,
                              const double* A, int lda, const double* B, int ldb,
                              const double* beta, double* C, int ldc) {
  static const auto real = NEXT(cublasDgemm_v2, "libcublas.so");
  const auto call = [&] {
    return real(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
  };
  const Outermost outermost;
  if (!outermost) return call();
  return with_faults(
      product_of(m, n, k, {A, CUDA_R_64F, lda, transa != CUBLAS_OP_N},
                 {B, CUDA_R_64F, ldb, transb != CUBLAS_OP_N}, C, {C, CUDA_R_64F, ldc}, false),
      stream_of(handle), call);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void* alpha, const void* A, cublasLtMatrixLayout_t Adesc,
                              const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta,
                              const void* C, cublasLtMatrixLayout_t Cdesc, void* D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspaceSizeInBytes, cudaStream_t stream) {
  static const auto real = NEXT(cublasLtMatmul, "libcublasLt.so");
  const auto call = [&] {
    return real(lightHandle, computeDesc, alpha, A, Adesc, B, Bdesc, beta, C, Cdesc, D, Ddesc, algo,
                workspace, workspaceSizeInBytes, stream);
  };
  const Outermost outermost;
  if (!outermost) return call();
  return with_faults(product_of(computeDesc, A, Adesc, B, Bdesc, D, Ddesc), stream, call);
}

cudaError_t cudaMalloc(void** devPtr, size_t size) {
  static const auto real = next<cudaError_t (*)(void**, size_t)>("cudaMalloc", "libcudart.so");
  const cudaError_t result = real(devPtr, size);
  if (result == cudaSuccess) allocated(*devPtr, size);
  return result;
}
cudaError_t cudaFree(void* devPtr) {
  static const auto real = NEXT(cudaFree, "libcudart.so");
  freed(devPtr);
  return real(devPtr);
}
CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  static const auto real = NEXT(cuMemAlloc_v2, "libcuda.so");
  const CUresult result = real(dptr, bytesize);
  if (result == CUDA_SUCCESS) allocated(reinterpret_cast<void*>(*dptr), bytesize);
  return result;
}
CUresult cuMemFree_v2(CUdeviceptr dptr) {
  static const auto real = NEXT(cuMemFree_v2, "libcuda.so");
  freed(reinterpret_cast<void*>(dptr));
  return real(dptr);
}

cudaError_t cudaMemcpy(void* dst, const void* src, size_t count, cudaMemcpyKind kind) {
  static const auto real = NEXT(cudaMemcpy, "libcudart.so");
  const cudaError_t result = real(dst, src, count, kind);
  if (result == cudaSuccess) after_copy(dst, src, count, nullptr);
  return result;
}
cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  static const auto real = NEXT(cudaMemcpyAsync, "libcudart.so");
  const cudaError_t result = real(dst, src, count, kind, stream);
  const CUstream on = stream;
  if (result == cudaSuccess) after_copy(dst, src, count, &on);
  return result;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  static const auto real = NEXT(cuMemcpyHtoD_v2, "libcuda.so");
  const CUresult result = real(dst, src, bytes);
  if (result == CUDA_SUCCESS) after_copy(reinterpret_cast<void*>(dst), src, bytes, nullptr);
  return result;
}
CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  static const auto real = NEXT(cuMemcpyDtoH_v2, "libcuda.so");
  const CUresult result = real(dst, src, bytes);
  if (result == CUDA_SUCCESS) after_copy(dst, reinterpret_cast<void*>(src), bytes, nullptr);
  return result;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t bytes, CUstream stream) {
  static const auto real = NEXT(cuMemcpyHtoDAsync_v2, "libcuda.so");
  const CUresult result = real(dst, src, bytes, stream);
  if (result == CUDA_SUCCESS) after_copy(reinterpret_cast<void*>(dst), src, bytes, &stream);
  return result;
}
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  static const auto real = NEXT(cuMemcpyDtoHAsync_v2, "libcuda.so");
  const CUresult result = real(dst, src, bytes, stream);
  if (result == CUDA_SUCCESS) after_copy(dst, reinterpret_cast<void*>(src), bytes, &stream);
  return result;
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  static const auto real = NEXT(ncclAllReduce, "libnccl.so");
  const ncclResult_t result = real(sendbuff, recvbuff, count, datatype, op, comm, stream);
  const Received one{recvbuff, bytes_of(count, datatype), stream};
  if (result == ncclSuccess && groups == 0)
    after_all_reduce(one.data, one.bytes, one.stream);
  else if (result == ncclSuccess)
    in_group.push_back(one);  // nothing is on the stream before the group's end
  return result;
}
ncclResult_t ncclGroupStart() {
  static const auto real = NEXT(ncclGroupStart, "libnccl.so");
  ++groups;
  return real();
}
ncclResult_t ncclGroupEnd() {
  static const auto real = NEXT(ncclGroupEnd, "libnccl.so");
  const ncclResult_t result = real();
  if (--groups > 0) return result;
  for (const Received& one : std::exchange(in_group, {}))
    if (result == ncclSuccess) after_all_reduce(one.data, one.bytes, one.stream);
  return result;
}
}
