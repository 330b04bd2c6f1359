// JSON of structs by one list of their fields, by which they are both written and read: FIELDS_OF.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/record.hpp"
#include "common/usage_error.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// visit(key, field) for each of these fields, whose names are the keys: 63 at most.
#define VISIT_FIELDS(...) NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(VISIT_FIELD, __VA_ARGS__))
#define VISIT_FIELD(name) visit(#name, fields.name);

/// All fields of a struct, in the order in which they are written.
#define FIELDS_OF(Struct, ...)                                            \
  void visit_fields(json_fields::Is<Struct> auto& fields, auto&& visit) { \
    VISIT_FIELDS(__VA_ARGS__)                                             \
  }

namespace json_fields {

/// A struct, which may be constant: one list serves to write and to read.
template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;
template <class T>
constexpr bool is_list = false;
template <class T>
constexpr bool is_list<std::vector<T>> = true;
template <class T>
constexpr bool is_plain =
    std::is_arithmetic_v<T> || std::is_same_v<T, std::string> || std::is_same_v<T, Json>;

/// Such a field has no key. A list that is known to be empty has one.
template <class T>
bool is_absent(const T& value) {
  if constexpr (is_optional<T>) return !value.has_value();
  if constexpr (is_list<T> || std::is_same_v<T, std::string>) return value.empty();
  return false;
}

}  // namespace json_fields

// Of what other structs contain.

FIELDS_OF(NvlinkReading, link, active, speed_mbs, crc_errors, replay_errors, recovery_errors)
FIELDS_OF(ProcessReading, pid, memory_bytes)
FIELDS_OF(HostGpus, driver_version, cuda_driver_version, problem, stalled, failed, gpus)

void visit_fields(json_fields::Is<GpuReading> auto& fields, auto&& visit) {
  VISIT_FIELDS(index, uuid, model, serial, vbios, pci_id, pci_device_id, numa_node, sm_clock_mhz,
               memory_clock_mhz, max_sm_clock_mhz, max_memory_clock_mhz, power_w, power_limit_w,
               power_limit_default_w, temperature_c, memory_temperature_c, temperature_margin_c,
               utilisation_percent, memory_utilisation_percent, memory_used_bytes,
               memory_total_bytes, throttle_reasons, power_violation_ns, thermal_violation_ns,
               persistence, ecc_enabled, mig_enabled, compute_mode, processes)
  visit("volatile_corrected", fields.volatile_.corrected);
  visit("volatile_uncorrected", fields.volatile_.uncorrected);
  visit("aggregate_corrected", fields.aggregate.corrected);
  visit("aggregate_uncorrected", fields.aggregate.uncorrected);
  VISIT_FIELDS(aggregate_sram_uncorrected, sram_threshold_exceeded, remapped_corrected,
               remapped_uncorrected, remap_pending, remap_failure, inforom_valid, recovery_action,
               pcie_generation, pcie_width, max_pcie_generation, max_pcie_width, pcie_replays,
               pcie_sent_mbs, pcie_received_mbs, nvlink_count, nvlinks, nvlink_sent_bytes,
               nvlink_received_bytes, fabric_state, fabric_status, fabric_health, stalled, failed)
}

template <class T>
Json written(const T& value) {
  using namespace json_fields;
  if constexpr (is_optional<T>) {
    return written(*value);
  } else if constexpr (is_list<T>) {
    Json list = Json::array();
    for (const auto& item : value) list.push_back(written(item));
    return list;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<int>(value);
  } else if constexpr (is_plain<T>) {
    return value;
  } else {
    Json json = Json::object();
    visit_fields(value, [&](const char* key, const auto& field) {
      if (!is_absent(field)) json[key] = written(field);
    });
    return json;
  }
}

/// Throws UsageError naming a key that a struct does not have, but for "source" and "fake".
template <class T>
void read_into(const Json& json, T& value) {
  using namespace json_fields;
  if constexpr (is_optional<T>) {
    read_into(json, value.emplace());
  } else if constexpr (is_list<T>) {
    for (const Json& item : json) read_into(item, value.emplace_back());
  } else if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(json.get<int>());
  } else if constexpr (is_plain<T>) {
    json.get_to(value);
  } else {
    for (const auto& [key, item] : json.items()) {
      bool found = key == "source" || key == "fake";
      visit_fields(value, [&, &name = key, &content = item](const char* field, auto& target) {
        if (name != field) return;
        found = true;
        read_into(content, target);
      });
      if (!found) throw UsageError(fmt::format("a reading has no key {}", key));
    }
  }
}

/// Throws UsageError where a value is of another type as well.
template <class T>
T read_as(const Json& json) {
  T value;
  try {
    read_into(json, value);
  } catch (const Json::exception& error) {
    throw UsageError(fmt::format("a reading has a value of another type: {}", error.what()));
  }
  return value;
}

}  // namespace shakedown::node
