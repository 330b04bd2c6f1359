#include "launch/node/health/facts/health_record.hpp"

#include <nlohmann/json.hpp>

#include "common/nvml.hpp"
#include "launch/node/health/facts/gpu_counters.hpp"

namespace shakedown::node {
namespace {

/// Links that are active; unknown where one link's state is, or there are no links.
Known<int> active_nvlinks(const GpuReading& reading) {
  int active = 0;
  for (const NvlinkReading& link : reading.nvlinks) {
    if (!link.active) return std::nullopt;
    active += *link.active;
  }
  return reading.nvlinks.empty() ? std::nullopt : Known<int>(active);
}

}  // namespace

Json health_record(const std::string& host, const std::string& time, double reading_ms,
                   const GpuReading& reading) {
  Json fields{{"host", host}, {"time", time}, {"reading_ms", reading_ms}};
  fields.update(to_json(reading));
  fields.erase("nvlinks");
  fields.erase("processes");
  if (reading.processes) fields["process_count"] = reading.processes->size();
  if (reading.throttle_reasons)
    fields["reasons"] = text_of_throttle_reasons(reading.throttle_reasons);
  if (const auto active = active_nvlinks(reading)) fields["nvlinks_active"] = *active;
  if (const auto errors = nvlink_errors(reading)) fields["nvlink_errors"] = *errors;
  return fields;
}

}  // namespace shakedown::node
