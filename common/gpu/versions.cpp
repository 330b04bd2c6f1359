#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>
#include <nccl.h>

#include "common/backend.hpp"

namespace shakedown::gpu {

std::vector<LibraryVersion> library_versions() {
  const auto cuda = [](int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); };
  const auto cudnn = [](auto v) {
    return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
  };
  const auto nccl = cudnn;  // the same digits
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  int nccl_running = 0;
  ncclGetVersion(&nccl_running);
  int blas[3] = {};
  cublasGetProperty(MAJOR_VERSION, &blas[0]);
  cublasGetProperty(MINOR_VERSION, &blas[1]);
  cublasGetProperty(PATCH_LEVEL, &blas[2]);
  return {{"cuda", cuda(CUDART_VERSION), cuda(runtime)},
          {"cudnn", cudnn(CUDNN_VERSION), cudnn(cudnnGetVersion())},
          {"cublas", fmt::format("{}.{}.{}", CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, CUBLAS_VER_PATCH),
           fmt::format("{}.{}.{}", blas[0], blas[1], blas[2])},
          {"nccl", nccl(NCCL_VERSION_CODE), nccl(nccl_running)}};
}

}  // namespace shakedown::gpu
