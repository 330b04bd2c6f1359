// JSON of structs by one list of their fields, by which they are both written and read: FIELDS_OF.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "common/record.hpp"
#include "common/usage_error.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/facts/node_report.hpp"

namespace shakedown::node {

/// visit(key, field) for each of these fields, whose names are the keys: 63 at most.
#define VISIT_FIELDS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(VISIT_FIELD, __VA_ARGS__))
#define VISIT_FIELD(name) visit(#name, fields.name);

/// All fields of a struct, in the order in which they are written.
#define FIELDS_OF(Struct, ...) \
  void visit_fields(Is<Struct> auto& fields, auto&& visit) { VISIT_FIELDS(__VA_ARGS__) }

/// A struct, which may be constant: one list serves to write and to read.
template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

FIELDS_OF(NvlinkReading, link, active, speed_mbs, crc_errors, replay_errors, recovery_errors)
FIELDS_OF(ProcessReading, pid, memory_bytes)
FIELDS_OF(HostGpus, driver_version, cuda_driver_version, confidential_computing, problem, stalled,
          failed, gpus)

void visit_fields(Is<GpuReading> auto& fields, auto&& visit) {
  VISIT_FIELDS(index, uuid, model, serial, vbios, pci_id, pci_device_id, numa_node,
               memory_numa_node, sm_clock_mhz, memory_clock_mhz, max_sm_clock_mhz,
               max_memory_clock_mhz, power_w, power_limit_w, power_limit_default_w, temperature_c,
               memory_temperature_c, temperature_margin_c, utilisation_percent,
               memory_utilisation_percent, memory_used_bytes, memory_total_bytes, throttle_reasons,
               power_violation_ns, thermal_violation_ns, persistence, ecc_enabled, mig_enabled,
               mig_devices, compute_mode, processes)
  visit("volatile_corrected", fields.volatile_.corrected);
  visit("volatile_uncorrected", fields.volatile_.uncorrected);
  visit("aggregate_corrected", fields.aggregate.corrected);
  visit("aggregate_uncorrected", fields.aggregate.uncorrected);
  VISIT_FIELDS(aggregate_sram_uncorrected, sram_threshold_exceeded, remapped_corrected,
               remapped_uncorrected, remap_pending, remap_failure, inforom_valid, recovery_action,
               pcie_generation, pcie_width, max_pcie_generation, max_pcie_width, pcie_replays,
               pcie_sent_mbs, pcie_received_mbs, nvlink_count, nvlinks, nvlink_sent_bytes,
               nvlink_received_bytes, fabric_state, fabric_status, fabric_health, fabric_cluster,
               fabric_clique, c2c_count, c2c_active, c2c_errors, stalled, failed)
}

FIELDS_OF(KernelEvent, age_s, kind, pci_id, code, text, sequence)
FIELDS_OF(KernelLog, events, reaches_back_s, first_sequence, last_sequence)
FIELDS_OF(NodeReport, host, gpus, reading_ms, facts, our_pids, loaded_gpus)

template <class T>
concept HasFields = requires(const T& value) {
  visit_fields(value, [](const char*, const auto&) {});
};

/// For nlohmann::json. What is not known has no key, nor has a text or list that is empty; a list
/// that is known to be empty has one.
template <HasFields T>
void to_json(Json& json, const T& value) {
  json = Json::object();
  visit_fields(value, [&](const char* key, const auto& field) {
    if constexpr (requires { field.has_value(); }) {
      if (field) json[key] = *field;
    } else if constexpr (requires { field.empty(); }) {
      if (!field.empty()) json[key] = field;
    } else {
      json[key] = field;
    }
  });
}

/// Throws UsageError naming a key that a struct does not have, but for "source" and "fake".
template <HasFields T>
void from_json(const Json& json, T& value) {
  for (const auto& [key, item] : json.items()) {
    bool found = key == "source" || key == "fake";
    visit_fields(value, [&, &name = key, &content = item](const char* field, auto& target) {
      if (name != field) return;
      found = true;
      if constexpr (requires { target.has_value(); })
        content.get_to(target.emplace());
      else
        content.get_to(target);
    });
    if (!found) throw UsageError(fmt::format("a reading has no key {}", key));
  }
}

/// Throws UsageError where a value is of another type as well.
template <class T>
T read_as(const Json& json) {
  try {
    return json.get<T>();
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("a reading has a value of another type: {}", error.what()));
  }
}

}  // namespace shakedown::node
