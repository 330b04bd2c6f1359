#include "launch/node/health/facts/gpu_reading.hpp"

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "common/error.hpp"
#include "common/nvml.hpp"

namespace shakedown::node {
namespace {

template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

// Each struct's keys and fields, in one list by which they are both written and read.

void visit_fields(Is<NvlinkReading> auto& link, auto&& visit) {
  visit("link", link.link);
  visit("active", link.active);
  visit("speed_mbs", link.speed_mbs);
  visit("crc_errors", link.crc_errors);
  visit("replay_errors", link.replay_errors);
  visit("recovery_errors", link.recovery_errors);
}

void visit_fields(Is<ProcessReading> auto& process, auto&& visit) {
  visit("pid", process.pid);
  visit("memory_bytes", process.memory_bytes);
}

void visit_state(auto& reading, auto&& visit) {
  visit("index", reading.index);
  visit("uuid", reading.uuid);
  visit("model", reading.model);
  visit("serial", reading.serial);
  visit("vbios", reading.vbios);
  visit("pci_id", reading.pci_id);
  visit("pci_device_id", reading.pci_device_id);
  visit("numa_node", reading.numa_node);
  visit("sm_clock_mhz", reading.sm_clock_mhz);
  visit("memory_clock_mhz", reading.memory_clock_mhz);
  visit("max_sm_clock_mhz", reading.max_sm_clock_mhz);
  visit("max_memory_clock_mhz", reading.max_memory_clock_mhz);
  visit("power_w", reading.power_w);
  visit("power_limit_w", reading.power_limit_w);
  visit("power_limit_default_w", reading.power_limit_default_w);
  visit("temperature_c", reading.temperature_c);
  visit("memory_temperature_c", reading.memory_temperature_c);
  visit("temperature_margin_c", reading.temperature_margin_c);
  visit("utilisation_percent", reading.utilisation_percent);
  visit("memory_utilisation_percent", reading.memory_utilisation_percent);
  visit("memory_used_bytes", reading.memory_used_bytes);
  visit("memory_total_bytes", reading.memory_total_bytes);
  visit("throttle_reasons", reading.throttle_reasons);
  visit("power_violation_ns", reading.power_violation_ns);
  visit("thermal_violation_ns", reading.thermal_violation_ns);
  visit("persistence", reading.persistence);
  visit("ecc_enabled", reading.ecc_enabled);
  visit("mig_enabled", reading.mig_enabled);
  visit("compute_mode", reading.compute_mode);
  visit("processes", reading.processes);
}

void visit_errors_and_links(auto& reading, auto&& visit) {
  visit("volatile_corrected", reading.volatile_.corrected);
  visit("volatile_uncorrected", reading.volatile_.uncorrected);
  visit("aggregate_corrected", reading.aggregate.corrected);
  visit("aggregate_uncorrected", reading.aggregate.uncorrected);
  visit("aggregate_sram_uncorrected", reading.aggregate_sram_uncorrected);
  visit("sram_threshold_exceeded", reading.sram_threshold_exceeded);
  visit("remapped_corrected", reading.remapped_corrected);
  visit("remapped_uncorrected", reading.remapped_uncorrected);
  visit("remap_pending", reading.remap_pending);
  visit("remap_failure", reading.remap_failure);
  visit("inforom_valid", reading.inforom_valid);
  visit("recovery_action", reading.recovery_action);
  visit("pcie_generation", reading.pcie_generation);
  visit("pcie_width", reading.pcie_width);
  visit("max_pcie_generation", reading.max_pcie_generation);
  visit("max_pcie_width", reading.max_pcie_width);
  visit("pcie_replays", reading.pcie_replays);
  visit("pcie_sent_mbs", reading.pcie_sent_mbs);
  visit("pcie_received_mbs", reading.pcie_received_mbs);
  visit("nvlink_count", reading.nvlink_count);
  visit("nvlinks", reading.nvlinks);
  visit("nvlink_sent_bytes", reading.nvlink_sent_bytes);
  visit("nvlink_received_bytes", reading.nvlink_received_bytes);
  visit("fabric_state", reading.fabric_state);
  visit("fabric_status", reading.fabric_status);
  visit("fabric_health", reading.fabric_health);
  visit("stalled", reading.stalled);
  visit("failed", reading.failed);
}

void visit_fields(Is<GpuReading> auto& reading, auto&& visit) {
  visit_state(reading, visit);
  visit_errors_and_links(reading, visit);
}

void visit_fields(Is<HostGpus> auto& host, auto&& visit) {
  visit("driver_version", host.driver_version);
  visit("cuda_driver_version", host.cuda_driver_version);
  visit("problem", host.problem);
  visit("stalled", host.stalled);
  visit("failed", host.failed);
  visit("gpus", host.gpus);
}

template <class T>
struct KindOf {
  static constexpr bool is_known = false, is_list = false;
};
template <class T>
struct KindOf<Known<T>> {
  static constexpr bool is_known = true, is_list = false;
};
template <class T>
struct KindOf<std::vector<T>> {
  static constexpr bool is_known = false, is_list = true;
};
template <class T>
constexpr bool is_text = std::is_same_v<T, std::string>;

template <class T>
bool is_absent(const T& value) {
  if constexpr (KindOf<T>::is_known) return !value.has_value();
  if constexpr (KindOf<T>::is_list || is_text<T>) return value.empty();
  return false;
}

template <class T>
Json written(const T& value) {
  if constexpr (KindOf<T>::is_known) {
    return written(*value);
  } else if constexpr (KindOf<T>::is_list) {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(written(item));
    return list;
  } else if constexpr (std::is_arithmetic_v<T> || is_text<T>) {
    return value;
  } else {
    Json fields = Json::object();
    visit_fields(value, [&](const char* key, const auto& field) {
      if (!is_absent(field)) fields[key] = written(field);
    });
    return fields;
  }
}

template <class T>
void read(const Json& json, T& value) {
  if constexpr (KindOf<T>::is_known) {
    read(json, value.emplace());
  } else if constexpr (KindOf<T>::is_list) {
    for (const Json& item : json) read(item, value.emplace_back());
  } else if constexpr (std::is_arithmetic_v<T> || is_text<T>) {
    json.get_to(value);
  } else {
    for (const auto& [key, item] : json.items()) {
      bool found = key == "source" || key == "fake";
      visit_fields(value, [&, &name = key, &content = item](const char* field, auto& target) {
        if (name != field) return;
        found = true;
        read(content, target);
      });
      if (!found) throw UsageError(fmt::format("a GPU's reading has no key {}", key));
    }
  }
}

template <class T>
T read_whole(const Json& json) {
  T value;
  try {
    read(json, value);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("a GPU's reading has a value of another type: {}", error.what()));
  }
  return value;
}

}  // namespace

Json to_json(const GpuReading& reading) { return written(reading); }
GpuReading gpu_reading_of(const Json& json) { return read_whole<GpuReading>(json); }
Json to_json(const HostGpus& host) { return written(host); }
HostGpus host_gpus_of(const Json& json) { return read_whole<HostGpus>(json); }

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
