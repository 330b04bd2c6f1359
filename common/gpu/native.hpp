// The CUDA objects of Stream and Event, for the gpu folders only.
#pragma once

#include <cuda_runtime_api.h>

#include "common/device.hpp"

namespace shakedown::gpu {

cudaStream_t native(const Stream& stream);
cudaEvent_t native(const Event& event);

}  // namespace shakedown::gpu
