// What the Compute Sanitizer's API puts at the start of each block of a kernel.
#include <sanitizer_patching.h>

#include "tests/faulty/placement/placement.hpp"

/// `userdata`: Launches, or null. Launches of a kernel follow each other: the blocks that have
/// entered before count them.
extern "C" __device__ __noinline__ SanitizerPatchResult placement_enter(void* userdata,
                                                                        std::uint64_t /*pc*/) {
  auto* const seen = static_cast<shakedown::placement::Launches*>(userdata);
  if (seen == nullptr || threadIdx.x + threadIdx.y + threadIdx.z != 0)
    return SANITIZER_PATCH_SUCCESS;
  const std::uint32_t launch = atomicAdd(&seen->entered, 1) / seen->blocks;
  if (launch >= seen->launches) return SANITIZER_PATCH_SUCCESS;
  std::uint32_t sm = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  const std::uint32_t block =
      (blockIdx.z * seen->blocks_y + blockIdx.y) * seen->blocks_x + blockIdx.x;
  seen->sm[static_cast<std::uint64_t>(launch) * seen->blocks + block] =
      static_cast<std::uint16_t>(sm + 1);
  return SANITIZER_PATCH_SUCCESS;
}
