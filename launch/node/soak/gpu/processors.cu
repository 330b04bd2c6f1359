#include "launch/node/soak/gpu/processors.cuh"

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::node::gpu {
namespace {

__global__ void see_processors_kernel(unsigned char* seen) {
  const int processor = this_processor();
  if (threadIdx.x == 0 && processor < kMostProcessors) seen[processor] = 1;
}

}  // namespace

std::vector<int> processors(Device& device) {
  const auto count = static_cast<std::size_t>(device.identity().compute_threads);
  const auto stream = device.make_stream();
  const Buffer seen(device, kMostProcessors);
  device.zero(seen.data(), seen.bytes(), *stream);
  std::vector<int> found;
  // Other work may occupy an SM for a while; a thousand threads a block leave room for few.
  for (int attempt = 0; attempt < 100 && found.size() < count; ++attempt) {
    see_processors_kernel<<<static_cast<unsigned>(count) * 16, 1024, 0,
                            shakedown::gpu::native(*stream)>>>(
        static_cast<unsigned char*>(seen.data()));
    CHECK_LAUNCH();
    const auto flags = download<unsigned char>(device, *stream, seen.data(), kMostProcessors);
    found.clear();
    for (int processor = 0; processor < kMostProcessors; ++processor)
      if (flags[static_cast<std::size_t>(processor)] != 0) found.push_back(processor);
  }
  if (found.size() != count)
    throw InconclusiveError("blocks ran on " + std::to_string(found.size()) + " of " +
                            std::to_string(count) + " SMs");
  return found;
}

}  // namespace shakedown::node::gpu
