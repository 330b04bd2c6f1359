// The CUDA objects of Stream and Event, for the gpu folders only.
#pragma once

#include <cuda_runtime_api.h>

#include "common/device.hpp"
#include "common/ensure.hpp"

namespace shakedown::gpu {

cudaStream_t native(const Stream& stream);
cudaEvent_t native(const Event& event);

/// Throws OutOfMemory, or InternalError "file:line: CUDA expression: reason".
[[noreturn]] void throw_cuda_error(cudaError_t status, const char* expression, const char* file,
                                   int line);

inline void check_cuda(cudaError_t status, const char* expression, const char* file, int line) {
  if (status != cudaSuccess) throw_cuda_error(status, expression, file, line);
}

}  // namespace shakedown::gpu

#define CHECK_CUDA(expression) \
  ::shakedown::gpu::check_cuda((expression), #expression, __FILE__, __LINE__)
/// After a kernel launch.
#define CHECK_LAUNCH() CHECK_CUDA(cudaGetLastError())
