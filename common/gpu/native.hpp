// The CUDA objects of Stream and Event, for the gpu folders only.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/device.hpp"
#include "common/error.hpp"

namespace shakedown::gpu {

cudaStream_t native(const Stream& stream);
cudaEvent_t native(const Event& event);

// Checks of CUDA calls. No fmt here: kernels (.cu) include it too.

inline void check_cuda(cudaError_t status, const char* expression, const char* file, int line) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error is not sticky
    throw OutOfMemory(std::string("out of GPU memory: ") + expression);
  }
  throw_library_error("CUDA", expression, file, line,
                      std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status));
}

}  // namespace shakedown::gpu

#define CHECK_CUDA(expression) \
  ::shakedown::gpu::check_cuda((expression), #expression, __FILE__, __LINE__)
/// After a kernel launch.
#define CHECK_LAUNCH() CHECK_CUDA(cudaGetLastError())
