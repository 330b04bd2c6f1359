#include "common/sm_clock.hpp"

#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::gpu {
namespace {

constexpr unsigned kWarp = 32;

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

}  // namespace

void launch_sm_stamp(SmStampCount* count, SmStamp* stamps, std::uint32_t slots, int sms,
                     Stream& stream) {
  stamp_sms_kernel<<<static_cast<unsigned>(sms), kWarp, 0, native(stream)>>>(count, stamps, slots);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
