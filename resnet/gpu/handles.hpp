// cuDNN's and cuBLAS's handles on one stream.
#pragma once

#include <cublas_v2.h>
#include <cudnn.h>

#include "common/device.hpp"
#include "common/types.hpp"
#include "resnet/precision.hpp"

namespace shakedown::gpu {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line);
#define CHECK_CUBLAS(expression) \
  ::shakedown::gpu::check_cublas((expression), #expression, __FILE__, __LINE__)

cudaDataType_t blas_type(DataType type);
/// Sums are in float32.
cublasComputeType_t blas_compute(Precision precision);

struct DnnHandle {
  cudnnHandle_t get = nullptr;
  explicit DnnHandle(cudaStream_t stream);
  ~DnnHandle() { cudnnDestroy(get); }
  DnnHandle(const DnnHandle&) = delete;
  DnnHandle& operator=(const DnnHandle&) = delete;
};

struct BlasHandle {
  cublasHandle_t get = nullptr;
  BlasHandle(Device& device, cudaStream_t stream);
  ~BlasHandle() { cublasDestroy(get); }
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;
  /// Of the work on this stream.
  const Buffer& workspace() const { return workspace_; }

 private:
  Buffer workspace_;
};

}  // namespace shakedown::gpu
