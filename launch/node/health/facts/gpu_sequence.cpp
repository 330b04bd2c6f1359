// Identity, state, settings and errors.
#include "launch/node/health/facts/gpu_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "launch/node/health/facts/host_facts.hpp"

namespace shakedown::node {

bool lacks(int status) {
  return status == nvml::kNotSupported || status == nvml::kFunctionNotFound ||
         status == nvml::kVersionMismatch || status == nvml::kDeprecated;
}

void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed) {
  if (status == nvml::kSuccess || lacks(status)) return;
  failed.push_back(fmt::format("{}: {}", function, library.words_of(status)));
}

namespace {

class GpuSequence {
 public:
  GpuSequence(const nvml::Library& library, Caller& call, GpuReading& reading)
      : library_(library), call_(call), reading_(reading) {}

  void run(bool inforom) {
    const auto index = static_cast<unsigned>(reading_.index);
    const int status = call_(library_.handle_by_index, index, &device_);
    note(library_.handle_by_index.name, status);
    if (status != nvml::kSuccess) return;
    identity();
    state();
    settings();
    power_and_heat();
    errors();
    pcie();
    fields();
    fabric();
    processes();
    if (inforom) validate_inforom();
  }

 private:
  void note(const std::string& function, int status) {
    note_failure(library_, function, status, reading_.failed);
  }

  template <class... Parameters, class... Arguments>
  bool reads(const nvml::Function<int(nvml::Device, Parameters...)>& function,
             Arguments... arguments) {
    const int status = call_(function, device_, arguments...);
    note(function.name, status);
    return status == nvml::kSuccess;
  }

  /// The older where the newer does not answer; whose error then does not matter.
  template <class Newer, class Older>
  bool either(Newer&& newer, Older&& older) {
    const std::size_t failed = reading_.failed.size();
    if (newer()) return true;
    if (!older()) return false;
    reading_.failed.resize(failed);
    return true;
  }

  /// What the function writes to its last parameter, where it is a number.
  template <class To, class... Parameters, class... Before>
  bool number(Known<To>& to, const nvml::Function<int(nvml::Device, Parameters...)>& function,
              Before... before) {
    std::remove_pointer_t<
        std::tuple_element_t<sizeof...(Parameters) - 1, std::tuple<Parameters...>>>
        value{};
    if (!reads(function, before..., &value)) return false;
    to = static_cast<To>(value);
    return true;
  }
  template <class... Before>
  bool thousandths(Known<double>& to, const auto& function, Before... before) {
    if (!number(to, function, before...)) return false;
    *to /= 1e3;
    return true;
  }

  void text(std::string& to, const nvml::Function<int(nvml::Device, char*, unsigned)>& function) {
    std::array<char, 128> read{};
    if (reads(function, read.data(), static_cast<unsigned>(read.size()))) to = read.data();
  }

  void identity() {
    text(reading_.uuid, library_.uuid);
    text(reading_.model, library_.model);
    text(reading_.serial, library_.serial);
    text(reading_.vbios, library_.vbios);
    nvml::PciInfo pci{};
    if (reads(library_.pci, &pci)) {
      reading_.pci_id = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
      reading_.pci_device_id = nvml::device_id_of(pci);
    }
    std::array<unsigned long, 16> nodes{};
    constexpr int kBits = 8 * sizeof(unsigned long);
    if (reads(library_.memory_affinity, static_cast<unsigned>(nodes.size()), nodes.data(),
              nvml::kNumaNodes))
      for (std::size_t i = 0; i < nodes.size() && !reading_.numa_node; ++i)
        if (nodes[i] != 0)
          reading_.numa_node = static_cast<int>(i) * kBits + std::countr_zero(nodes[i]);
    number(reading_.memory_numa_node, library_.numa_node);
  }

  void state() {
    number(reading_.sm_clock_mhz, library_.clock, nvml::kClockSm);
    number(reading_.memory_clock_mhz, library_.clock, nvml::kClockMemory);
    number(reading_.max_sm_clock_mhz, library_.max_clock, nvml::kClockSm);
    number(reading_.max_memory_clock_mhz, library_.max_clock, nvml::kClockMemory);
    nvml::Utilisation percent{};
    if (reads(library_.utilisation, &percent)) {
      reading_.utilisation_percent = percent.gpu;
      reading_.memory_utilisation_percent = percent.memory;
    }
    nvml::MemoryV2 memory{};
    memory.version = nvml::version_of<nvml::MemoryV2>(2);
    nvml::Memory old{};
    const auto without_reserved = [&] { return reads(library_.memory_v2, &memory); };
    const auto with_reserved = [&] {
      if (!reads(library_.memory, &old)) return false;
      memory.total = old.total;
      memory.used = old.used;
      return true;
    };
    if (either(without_reserved, with_reserved)) {
      reading_.memory_used_bytes = memory.used;
      reading_.memory_total_bytes = memory.total;
    }
    either([&] { return number(reading_.throttle_reasons, library_.reasons); },
           [&] { return number(reading_.throttle_reasons, library_.old_reasons); });
  }

  void settings() {
    unsigned now = 0;
    unsigned pending = 0;
    number(reading_.persistence, library_.persistence);
    const int ecc = call_(library_.ecc_mode, device_, &now, &pending);
    note(library_.ecc_mode.name, ecc);
    if (ecc == nvml::kSuccess) reading_.ecc_enabled = now != 0;
    if (ecc == nvml::kSuccess || ecc == nvml::kNotSupported)
      reading_.has_ecc = ecc == nvml::kSuccess;
    if (reads(library_.mig_mode, &now, &pending)) reading_.mig_enabled = now != 0;
    if (reading_.mig_enabled == true) mig_devices();
    if (reads(library_.compute_mode, &now)) reading_.compute_mode = word_of(kComputeModes, now);
  }

  /// By their names, "NVIDIA H200 MIG 1g.18gb". Places without a device are not found.
  void mig_devices() {
    constexpr std::string_view kBefore = " MIG ";
    unsigned most = 0;
    if (!reads(library_.most_mig_devices, &most)) return;
    std::vector<std::string> found;
    for (unsigned place = 0; place < most; ++place) {
      nvml::Device instance = nullptr;
      const int status = call_(library_.mig_device, device_, place, &instance);
      if (status == nvml::kNotFound) continue;
      note(library_.mig_device.name, status);
      std::array<char, 128> name{};
      if (status != nvml::kSuccess || call_(library_.model, instance, name.data(),
                                            static_cast<unsigned>(name.size())) != nvml::kSuccess)
        return;
      const std::string text = name.data();
      const auto at = text.find(kBefore);
      found.push_back(at == text.npos ? text : text.substr(at + kBefore.size()));
    }
    std::ranges::sort(found);
    reading_.mig_devices = found;
  }

  void power_and_heat() {
    thousandths(reading_.power_w, library_.power_mw);
    either([&] { return thousandths(reading_.power_limit_w, library_.power_limit_mw); },
           [&] { return thousandths(reading_.power_limit_w, library_.old_power_limit_mw); });
    thousandths(reading_.power_limit_default_w, library_.power_default_mw);
    nvml::Temperature now{nvml::version_of<nvml::Temperature>(1), nvml::kTemperatureGpu, 0};
    const auto newer = [&] {
      if (!reads(library_.temperature, &now)) return false;
      reading_.temperature_c = now.celsius;
      return true;
    };
    either(newer, [&] {
      return number(reading_.temperature_c, library_.old_temperature, nvml::kTemperatureGpu);
    });
    nvml::MarginTemperature margin{nvml::version_of<nvml::MarginTemperature>(1), 0};
    if (reads(library_.margin, &margin)) reading_.temperature_margin_c = margin.celsius;
    nvml::Violation violation{};
    if (reads(library_.violation, nvml::kPolicyPower, &violation))
      reading_.power_violation_ns = violation.violation_ns;
    if (reads(library_.violation, nvml::kPolicyThermal, &violation))
      reading_.thermal_violation_ns = violation.violation_ns;
  }

  void errors() {
    using namespace nvml;
    number(reading_.volatile_.corrected, library_.ecc_errors, kCorrected, kVolatile);
    number(reading_.volatile_.uncorrected, library_.ecc_errors, kUncorrected, kVolatile);
    number(reading_.aggregate.corrected, library_.ecc_errors, kCorrected, kAggregate);
    number(reading_.aggregate.uncorrected, library_.ecc_errors, kUncorrected, kAggregate);
    nvml::SramErrors sram{};
    sram.version = nvml::version_of<nvml::SramErrors>(1);
    const auto newer = [&] {
      if (!reads(library_.sram_errors, &sram)) return false;
      reading_.aggregate_sram_uncorrected = sram.aggregate_parity + sram.aggregate_sec_ded;
      reading_.sram_threshold_exceeded = sram.threshold_exceeded != 0;
      return true;
    };
    either(newer, [&] {
      return number(reading_.aggregate_sram_uncorrected, library_.old_ecc_errors, kUncorrected,
                    kAggregate, kLocationSram);
    });
    std::array<unsigned, 4> rows{};
    if (reads(library_.remapped_rows, &rows[0], &rows[1], &rows[2], &rows[3])) {
      reading_.remapped_corrected = static_cast<int>(rows[0]);
      reading_.remapped_uncorrected = static_cast<int>(rows[1]);
      reading_.remap_pending = rows[2] != 0;
      reading_.remap_failure = rows[3] != 0;
    }
  }

  void validate_inforom() {
    const int status = call_(library_.validate_inforom, device_);
    if (status == nvml::kSuccess || status == nvml::kCorruptedInforom)
      reading_.inforom_valid = status == nvml::kSuccess;
    else
      note(library_.validate_inforom.name, status);
  }

  // Links, what the field values have, and processes.

  void pcie() {
    number(reading_.pcie_generation, library_.pcie_generation);
    number(reading_.pcie_width, library_.pcie_width);
    number(reading_.max_pcie_generation, library_.max_pcie_generation);
    number(reading_.max_pcie_width, library_.max_pcie_width);
    number(reading_.pcie_replays, library_.pcie_replays);
    thousandths(reading_.pcie_sent_mbs, library_.pcie_rate_kbs, nvml::kPcieSent);
    thousandths(reading_.pcie_received_mbs, library_.pcie_rate_kbs, nvml::kPcieReceived);
  }

  /// The counts in their order.
  template <std::size_t N>
  std::array<Known<std::uint64_t>, N> field_values(std::array<nvml::FieldValue, N> values) {
    std::array<Known<std::uint64_t>, N> counts;
    if (!reads(library_.field_values, static_cast<int>(values.size()), values.data()))
      return counts;
    for (std::size_t i = 0; i < values.size(); ++i) {
      counts[i] = nvml::count_of(values[i]);
      // A field that is newer than the driver is an invalid argument.
      if (values[i].status != nvml::kInvalidArgument)
        note(fmt::format("{} {}", library_.field_values.name, values[i].field), values[i].status);
    }
    return counts;
  }

  void fields() {
    using nvml::field_value;
    const auto [memory_c, action, sent_kib, received_kib, power_ns, thermal_ns, replays, links,
                speed_mbs] = field_values(std::array{
        field_value(nvml::kFieldMemoryTemperature), field_value(nvml::kFieldRecoveryAction),
        field_value(nvml::kFieldNvlinkSentKib, nvml::kAllLinks),
        field_value(nvml::kFieldNvlinkReceivedKib, nvml::kAllLinks),
        field_value(nvml::kFieldViolationPower), field_value(nvml::kFieldViolationThermal),
        field_value(nvml::kFieldPcieReplays), field_value(nvml::kFieldNvlinkCount),
        field_value(nvml::kFieldNvlinkCommonSpeed)});
    if (memory_c) reading_.memory_temperature_c = static_cast<double>(*memory_c);
    if (action) reading_.recovery_action = word_of(kRecoveryActions, *action);
    if (sent_kib) reading_.nvlink_sent_bytes = 1024 * *sent_kib;
    if (received_kib) reading_.nvlink_received_bytes = 1024 * *received_kib;
    if (!reading_.power_violation_ns) reading_.power_violation_ns = power_ns;
    if (!reading_.thermal_violation_ns) reading_.thermal_violation_ns = thermal_ns;
    if (!reading_.pcie_replays) reading_.pcie_replays = replays;
    nvlinks(links, speed_mbs);
    c2c();
  }

  void c2c() {
    using nvml::field_value;
    const auto [count] = field_values(std::array{field_value(nvml::kFieldC2cCount)});
    if (!count) return;
    reading_.c2c_count = count;
    reading_.c2c_active = reading_.c2c_errors = 0;
    const auto add = [](Known<std::uint64_t>& to, const Known<std::uint64_t>& more) {
      to = to && more ? Known<std::uint64_t>(*to + *more) : std::nullopt;
    };
    for (unsigned link = 0; link < std::min<std::uint64_t>(*count, nvml::kMostLinks); ++link) {
      const auto [state, crc, replays, repeated] = field_values(std::array{
          field_value(nvml::kFieldC2cState, link), field_value(nvml::kFieldC2cCrcErrors, link),
          field_value(nvml::kFieldC2cReplays, link),
          field_value(nvml::kFieldC2cRepeatedReplays, link)});
      add(reading_.c2c_active, state);
      for (const auto& errors : {crc, replays, repeated}) add(reading_.c2c_errors, errors);
    }
  }

  void nvlinks(Known<std::uint64_t> count, Known<std::uint64_t> common_speed_mbs) {
    for (unsigned link = 0; link < nvml::kMostLinks; ++link) {
      if (count ? link >= *count : !has_nvlink(link)) break;
      reading_.nvlinks.push_back(nvlink(link, common_speed_mbs));
    }
    if (count) reading_.nvlink_count = static_cast<int>(*count);
    if (!count && !reading_.nvlinks.empty())
      reading_.nvlink_count = static_cast<int>(reading_.nvlinks.size());
  }

  /// For a driver that does not report the number of links: one beyond it is an invalid argument.
  bool has_nvlink(unsigned link) {
    unsigned active = 0;
    const int status = call_(library_.nvlink_state, device_, link, &active);
    if (status != nvml::kInvalidArgument) note(library_.nvlink_state.name, status);
    return status == nvml::kSuccess;
  }

  NvlinkReading nvlink(unsigned link, Known<std::uint64_t> common_speed_mbs) {
    using nvml::field_value;
    const auto [state, own_speed_mbs, crc, replays, recoveries, newer_crc, newer_replays,
                newer_recoveries] = field_values(std::array{
        field_value(nvml::kFieldNvlinkState, link), field_value(nvml::kFieldNvlinkSpeed, link),
        field_value(nvml::kFieldNvlinkCrcErrors, link),
        field_value(nvml::kFieldNvlinkReplays, link),
        field_value(nvml::kFieldNvlinkRecoveries, link),
        field_value(nvml::kFieldNvlinkEffectiveErrors, link),
        field_value(nvml::kFieldNvlinkReceiveErrors, link),
        field_value(nvml::kFieldNvlinkRecoveryEvents, link)});
    NvlinkReading read;
    read.link = static_cast<int>(link);
    if (state)
      read.active = *state != 0;
    else
      number(read.active, library_.nvlink_state, link);
    const Known<std::uint64_t> speed_mbs =
        own_speed_mbs || !read.active.value_or(false) ? own_speed_mbs : common_speed_mbs;
    if (speed_mbs) read.speed_mbs = static_cast<int>(*speed_mbs);
    const auto errors = [&](Known<std::uint64_t> field, Known<std::uint64_t> newer,
                            unsigned counter) {
      if (!field) field = newer;
      if (!field) number(field, library_.nvlink_errors, link, counter);
      return field;
    };
    read.crc_errors = errors(crc, newer_crc, nvml::kNvlinkCrcFlit);
    read.replay_errors = errors(replays, newer_replays, nvml::kNvlinkReplay);
    read.recovery_errors = errors(recoveries, newer_recoveries, nvml::kNvlinkRecovery);
    return read;
  }

  void fabric() {
    nvml::FabricInfo info{};
    const std::size_t failed = reading_.failed.size();
    const auto call = [&](const auto& function, auto* to) { return reads(function, to); };
    if (!nvml::read_fabric(library_, call, info)) return;
    reading_.failed.resize(failed);
    reading_.fabric_state = word_of(kFabricStates, info.state);
    if (info.state == nvml::kFabricCompleted) {
      reading_.fabric_status =
          info.status == nvml::kSuccess ? "success" : library_.words_of(info.status);
      reading_.fabric_cluster = nvml::cluster_of(info);
      if (!reading_.fabric_cluster->empty()) reading_.fabric_clique = static_cast<int>(info.clique);
    }
    if (info.health_summary != 0)
      reading_.fabric_health = word_of(kFabricHealth, info.health_summary);
    else if ((info.health_mask & 0x3) == 1 || (info.health_mask >> 4 & 0x3) == 1)
      reading_.fabric_health = "unhealthy";  // degraded bandwidth, unhealthy route: older drivers
  }

  void processes() {
    constexpr std::size_t kMost = 4096;
    std::vector<nvml::Process> list(32);
    unsigned count = 0;
    int status = nvml::kInsufficientSize;
    while (status == nvml::kInsufficientSize && list.size() < kMost) {
      list.resize(2 * list.size());
      count = static_cast<unsigned>(list.size());
      status = call_(library_.processes, device_, &count, list.data());
    }
    note(library_.processes.name, status);
    if (status != nvml::kSuccess) return;
    reading_.processes.emplace();
    for (unsigned i = 0; i < count; ++i) {
      ProcessReading process{static_cast<int>(list[i].pid), std::nullopt};
      if (list[i].used_memory != nvml::kMemoryHidden) process.memory_bytes = list[i].used_memory;
      reading_.processes->push_back(process);
    }
  }

  const nvml::Library& library_;
  Caller& call_;
  GpuReading& reading_;
  nvml::Device device_ = nullptr;
};

}  // namespace

void read_gpu(const nvml::Library& library, Caller& call, GpuReading& reading, bool inforom) {
  GpuSequence(library, call, reading).run(inforom);
}

}  // namespace shakedown::node
