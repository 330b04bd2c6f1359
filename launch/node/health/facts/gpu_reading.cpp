#include "launch/node/health/facts/gpu_reading.hpp"

#include <nlohmann/json.hpp>

#include "common/nvml.hpp"
#include "launch/node/health/facts/json_fields.hpp"

namespace shakedown::node {
Json to_json(const GpuReading& reading) { return written(reading); }
GpuReading gpu_reading_of(const Json& json) { return read_as<GpuReading>(json); }
Json to_json(const HostGpus& host) { return written(host); }
HostGpus host_gpus_of(const Json& json) { return read_as<HostGpus>(json); }

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

Known<std::size_t> active_nvlinks(const GpuReading& reading) {
  if (reading.nvlinks.empty() && reading.nvlink_count != 0) return std::nullopt;
  std::size_t active = 0;
  for (const NvlinkReading& link : reading.nvlinks) {
    if (!link.active) return std::nullopt;
    active += *link.active;
  }
  return active;
}

Json health_record(const std::string& host, const std::string& time, double reading_ms,
                   const GpuReading& reading) {
  Json fields{{"host", host}, {"time", time}, {"reading_ms", reading_ms}};
  fields.update(to_json(reading));
  fields.erase("nvlinks");
  fields.erase("processes");
  if (reading.processes) fields["process_count"] = reading.processes->size();
  if (reading.throttle_reasons)
    fields["reasons"] = text_of_throttle_reasons(reading.throttle_reasons);
  if (const auto active = active_nvlinks(reading); active && !reading.nvlinks.empty())
    fields["nvlinks_active"] = *active;
  if (const auto errors = nvlink_errors(reading)) fields["nvlink_errors"] = *errors;
  return fields;
}

}  // namespace shakedown::node
