// Links, what the field values have, and processes.
#include "launch/node/health/facts/gpu_sequence.hpp"

#include <fmt/format.h>

#include "launch/node/health/facts/words.hpp"

namespace shakedown::node {

void GpuSequence::pcie() {
  number(reading_.pcie_generation, library_.pcie_generation);
  number(reading_.pcie_width, library_.pcie_width);
  number(reading_.max_pcie_generation, library_.max_pcie_generation);
  number(reading_.max_pcie_width, library_.max_pcie_width);
  number(reading_.pcie_replays, library_.pcie_replays);
  const auto rate = [&](Known<double>& to, unsigned direction) {
    if (number(to, library_.pcie_rate_kbs, direction)) *to /= 1e3;
  };
  rate(reading_.pcie_sent_mbs, nvml::kPcieSent);
  rate(reading_.pcie_received_mbs, nvml::kPcieReceived);
}

/// The counts in their order.
std::vector<Known<std::uint64_t>> GpuSequence::field_values(std::vector<nvml::FieldValue> values) {
  std::vector<Known<std::uint64_t>> counts(values.size());
  if (!reads(library_.field_values, static_cast<int>(values.size()), values.data())) return counts;
  for (std::size_t i = 0; i < values.size(); ++i) {
    counts[i] = nvml::count_of(values[i]);
    // A field that is newer than the driver is an invalid argument.
    if (values[i].status != nvml::kInvalidArgument)
      note(fmt::format("{} {}", library_.field_values.name, values[i].field), values[i].status);
  }
  return counts;
}

void GpuSequence::fields() {
  using nvml::field_value;
  const auto counts = field_values(
      {field_value(nvml::kFieldMemoryTemperature), field_value(nvml::kFieldRecoveryAction),
       field_value(nvml::kFieldNvlinkSentKib, nvml::kAllLinks),
       field_value(nvml::kFieldNvlinkReceivedKib, nvml::kAllLinks),
       field_value(nvml::kFieldViolationPower), field_value(nvml::kFieldViolationThermal),
       field_value(nvml::kFieldPcieReplays), field_value(nvml::kFieldNvlinkCount),
       field_value(nvml::kFieldNvlinkCommonSpeed)});
  if (counts[0]) reading_.memory_temperature_c = static_cast<double>(*counts[0]);
  if (counts[1]) reading_.recovery_action = word_of(kRecoveryActions, *counts[1]);
  if (counts[2]) reading_.nvlink_sent_bytes = 1024 * *counts[2];
  if (counts[3]) reading_.nvlink_received_bytes = 1024 * *counts[3];
  if (!reading_.power_violation_ns) reading_.power_violation_ns = counts[4];
  if (!reading_.thermal_violation_ns) reading_.thermal_violation_ns = counts[5];
  if (!reading_.pcie_replays) reading_.pcie_replays = counts[6];
  nvlinks(counts[7], counts[8]);
}

void GpuSequence::nvlinks(Known<std::uint64_t> count, Known<std::uint64_t> common_speed_mbs) {
  for (unsigned link = 0; link < nvml::kMostLinks; ++link) {
    if (count ? link >= *count : !has_nvlink(link)) break;
    reading_.nvlinks.push_back(nvlink(link, common_speed_mbs));
  }
  if (count) reading_.nvlink_count = static_cast<int>(*count);
  if (!count && !reading_.nvlinks.empty())
    reading_.nvlink_count = static_cast<int>(reading_.nvlinks.size());
}

/// For a driver that does not report the number of links: one beyond it is an invalid argument.
bool GpuSequence::has_nvlink(unsigned link) {
  unsigned active = 0;
  const int status = call_(library_.nvlink_state, device_, link, &active);
  if (status != nvml::kInvalidArgument) note(library_.nvlink_state.name, status);
  return status == nvml::kSuccess;
}

NvlinkReading GpuSequence::nvlink(unsigned link, Known<std::uint64_t> common_speed_mbs) {
  using nvml::field_value;
  const auto counts = field_values(
      {field_value(nvml::kFieldNvlinkState, link), field_value(nvml::kFieldNvlinkSpeed, link),
       field_value(nvml::kFieldNvlinkCrcErrors, link), field_value(nvml::kFieldNvlinkReplays, link),
       field_value(nvml::kFieldNvlinkRecoveries, link),
       field_value(nvml::kFieldNvlinkEffectiveErrors, link),
       field_value(nvml::kFieldNvlinkReceiveErrors, link),
       field_value(nvml::kFieldNvlinkRecoveryEvents, link)});
  NvlinkReading read;
  read.link = static_cast<int>(link);
  unsigned active = 0;
  if (counts[0])
    read.active = *counts[0] != 0;
  else if (reads(library_.nvlink_state, link, &active))
    read.active = active != 0;
  const Known<std::uint64_t> speed_mbs =
      counts[1] || !read.active.value_or(false) ? counts[1] : common_speed_mbs;
  if (speed_mbs) read.speed_mbs = static_cast<int>(*speed_mbs);
  const auto errors = [&](Known<std::uint64_t> field, Known<std::uint64_t> newer,
                          unsigned counter) {
    unsigned long long value = 0;
    if (field || newer) return field ? field : newer;
    return reads(library_.nvlink_errors, link, counter, &value) ? Known<std::uint64_t>(value)
                                                                : std::nullopt;
  };
  read.crc_errors = errors(counts[2], counts[5], nvml::kNvlinkCrcFlit);
  read.replay_errors = errors(counts[3], counts[6], nvml::kNvlinkReplay);
  read.recovery_errors = errors(counts[4], counts[7], nvml::kNvlinkRecovery);
  return read;
}

void GpuSequence::fabric() {
  nvml::FabricInfo info{};
  const auto version = [&](unsigned number) {
    info.version = number;
    return reads(library_.fabric, &info);
  };
  const auto oldest = [&] {
    nvml::OldFabricInfo old{};
    if (!reads(library_.old_fabric, &old)) return false;
    info.state = old.state;
    info.status = old.status;
    return true;
  };
  const auto older = [&] { return either([&] { return version(nvml::kFabricVersion2); }, oldest); };
  if (!either([&] { return version(nvml::kFabricVersion3); }, older)) return;
  reading_.fabric_state = word_of(kFabricStates, info.state);
  if (*reading_.fabric_state == "completed")
    reading_.fabric_status =
        info.status == nvml::kSuccess ? "success" : library_.words_of(info.status);
  if (info.health_summary != 0)
    reading_.fabric_health = word_of(kFabricHealth, info.health_summary);
  else if ((info.health_mask & 0x3) == 1 || (info.health_mask >> 4 & 0x3) == 1)
    reading_.fabric_health = "unhealthy";  // degraded bandwidth, unhealthy route: older drivers
}

void GpuSequence::processes() {
  std::vector<nvml::Process> list(64);
  unsigned count = 0;
  const auto by = [&](const auto& function) {
    for (int status = nvml::kInsufficientSize; status == nvml::kInsufficientSize;) {
      count = static_cast<unsigned>(list.size());
      status = call_(function, device_, &count, list.data());
      if (status == nvml::kSuccess) return true;
      if (status != nvml::kInsufficientSize || list.size() > 4096) {
        note(function.name, status);
        return false;
      }
      list.resize(2 * list.size());
    }
    return false;
  };
  if (!either([&] { return by(library_.processes); }, [&] { return by(library_.old_processes); }))
    return;
  reading_.processes.emplace();
  for (unsigned i = 0; i < count; ++i) {
    ProcessReading process{static_cast<int>(list[i].pid), std::nullopt};
    if (list[i].used_memory != nvml::kMemoryHidden) process.memory_bytes = list[i].used_memory;
    reading_.processes->push_back(process);
  }
}

}  // namespace shakedown::node
