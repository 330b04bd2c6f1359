#include "launch/node/health/facts/gpu_counters.hpp"

namespace shakedown::node {

Known<std::uint64_t> nvlink_errors(const GpuReading& reading) {
  if (reading.nvlinks.empty() && reading.nvlink_count != 0) return std::nullopt;  // not reported
  std::uint64_t errors = 0;
  for (const NvlinkReading& link : reading.nvlinks)
    for (const auto& counter : {link.crc_errors, link.replay_errors, link.recovery_errors}) {
      if (!counter) return std::nullopt;
      errors += *counter;
    }
  return errors;
}

Known<std::uint64_t> grown(const Known<std::uint64_t>& before, const Known<std::uint64_t>& now) {
  if (!before || !now || *now < *before) return std::nullopt;
  return *now - *before;
}

}  // namespace shakedown::node
