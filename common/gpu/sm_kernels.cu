// Kernels about SMs themselves: their stamps (common/sm_clock.hpp), and blocks that hold some of
// them (common/program.hpp).
#include "common/gpu/native.hpp"
#include "common/program.hpp"
#include "common/sm_clock.hpp"

namespace shakedown::gpu {
namespace {

constexpr unsigned kWarp = 32;
constexpr int kHoldThreads = 1024;
constexpr int kLeft = 1024;  // bytes of shared memory that the driver itself uses

/// A warp per SM: on an idle GPU the blocks spread over all of them. A block that comes to an SM
/// after another one replaces its stamp.
__global__ void stamp_sms_kernel(SmStampCount* count, SmStamp* stamps, std::uint32_t slots) {
  if (threadIdx.x > 0) return;
  const std::uint32_t number = *static_cast<volatile std::uint32_t*>(&count->stamps);
  unsigned sm = 0;
  std::uint64_t time = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm < kMostSms) {
    const auto cycles = static_cast<std::uint64_t>(clock64());
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    stamps[number % slots * kMostSms + sm] = {cycles, time, std::uint64_t{number} + 1};
  }
  __threadfence();  // the number is read before this block has arrived
  // The last block moves on to the next stamp.
  if (atomicInc(&count->arrived, gridDim.x - 1) == gridDim.x - 1)
    *static_cast<volatile std::uint32_t*>(&count->stamps) = number + 1;
}

/// One thread polls the host's memory, seldom: it is read over the link that may be measured.
__global__ void __launch_bounds__(kHoldThreads) hold_sm_kernel(HoldWords* words) {
  if (threadIdx.x == 0) {
    atomicAdd_system(&words->resident, 1);
    while (*static_cast<volatile std::int32_t*>(&words->stop) == 0) __nanosleep(20'000);
  }
  __syncthreads();
}

}  // namespace

void launch_sm_stamp(SmStampCount* count, SmStamp* stamps, std::uint32_t slots, int sms,
                     Stream& stream) {
  stamp_sms_kernel<<<static_cast<unsigned>(sms), kWarp, 0, native(stream)>>>(count, stamps, slots);
  CHECK_LAUNCH();
}

void launch_hold_sms(HoldWords* words, int count, Stream& stream) {
  int device = 0;
  int most = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const int shared = most - kLeft;
  CHECK_CUDA(
      cudaFuncSetAttribute(hold_sm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  hold_sm_kernel<<<static_cast<unsigned>(count), kHoldThreads, static_cast<std::size_t>(shared),
                   native(stream)>>>(words);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
