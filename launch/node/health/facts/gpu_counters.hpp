// Error counters of a GPU, and how they grow from one reading to the next.
#pragma once

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// CRC errors, replays and recoveries of all NVLinks; unknown where one counter of one link is.
Known<std::uint64_t> nvlink_errors(const GpuReading& reading);

/// Unknown where either is, and where the counter has become less: the driver was loaded anew.
Known<std::uint64_t> grown(const Known<std::uint64_t>& before, const Known<std::uint64_t>& now);

}  // namespace shakedown::node
