#include "common/fault.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kThreads = 1024;
constexpr int kLeft = 1024;  // bytes of shared memory for the driver's own

/// One thread polls the host's memory, seldom: it is read over the link that may be measured.
__global__ void __launch_bounds__(kThreads) hold_sm_kernel(HoldWords* words) {
  if (threadIdx.x == 0) {
    atomicAdd_system(&words->resident, 1);
    while (*static_cast<volatile std::int32_t*>(&words->stop) == 0) __nanosleep(20'000);
  }
  __syncthreads();
}

}  // namespace

void launch_hold_sms(HoldWords* words, int count, Stream& stream) {
  int device = 0;
  int most = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int shared = most - kLeft;
  CHECK_CUDA(
      cudaFuncSetAttribute(hold_sm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  hold_sm_kernel<<<static_cast<unsigned>(count), kThreads, static_cast<std::size_t>(shared),
                   native(stream)>>>(words);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
