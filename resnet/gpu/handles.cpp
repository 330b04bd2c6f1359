#include "resnet/gpu/handles.hpp"

#include "common/error.hpp"
#include "resnet/gpu/cudnn.hpp"

namespace shakedown::gpu {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_library_error("cuBLAS", expression, file, line, cublasGetStatusString(status));
}

cudaDataType_t blas_type(DataType type) {
  switch (type) {
    case DataType::float16: return CUDA_R_16F;
    case DataType::bfloat16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t blas_compute(Precision precision) {
  return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

DnnHandle::DnnHandle(cudaStream_t stream) {
  CHECK_CUDNN(cudnnCreate(&get));
  CHECK_CUDNN(cudnnSetStream(get, stream));
}

// cuBLAS's default on Hopper; allocated here because cuBLAS must not allocate during graph capture.
constexpr std::size_t kBlasWorkspace = std::size_t{32} << 20;

BlasHandle::BlasHandle(Device& device, cudaStream_t stream) : workspace_(device, kBlasWorkspace) {
  CHECK_CUBLAS(cublasCreate(&get));
  CHECK_CUBLAS(cublasSetStream(get, stream));  // which would forget the workspace
  CHECK_CUBLAS(cublasSetWorkspace(get, workspace_.data(), workspace_.bytes()));
}

}  // namespace shakedown::gpu
