// Identity, state, settings and errors.
#include "launch/node/health/facts/gpu_sequence.hpp"

#include <fmt/format.h>

#include <bit>

#include "launch/node/health/facts/words.hpp"

namespace shakedown::node {

void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed) {
  const bool lacks = status == nvml::kNotSupported || status == nvml::kFunctionNotFound ||
                     status == nvml::kVersionMismatch || status == nvml::kDeprecated;
  if (status == nvml::kSuccess || lacks) return;
  failed.push_back(fmt::format("{}: {}", function, library.words_of(status)));
}

void GpuSequence::run() {
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
  if (inforom_) inforom();
}

void GpuSequence::identity() {
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
  const auto near_memory = [&] {
    if (!reads(library_.memory_affinity, static_cast<unsigned>(nodes.size()), nodes.data(),
               nvml::kNumaNodes))
      return false;
    for (std::size_t i = 0; i < nodes.size() && !reading_.numa_node; ++i)
      if (nodes[i] != 0)
        reading_.numa_node = static_cast<int>(i) * kBits + std::countr_zero(nodes[i]);
    return reading_.numa_node.has_value();
  };
  either(near_memory, [&] { return number(reading_.numa_node, library_.numa_node); });
}

void GpuSequence::state() {
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
  unsigned long long reasons = 0;
  if (either([&] { return reads(library_.reasons, &reasons); },
             [&] { return reads(library_.old_reasons, &reasons); }))
    reading_.throttle_reasons = reasons;
}

void GpuSequence::settings() {
  unsigned now = 0;
  unsigned pending = 0;
  if (reads(library_.persistence, &now)) reading_.persistence = now != 0;
  const int ecc = call_(library_.ecc_mode, device_, &now, &pending);
  note(library_.ecc_mode.name, ecc);
  if (ecc == nvml::kSuccess) reading_.ecc_enabled = now != 0;
  if (ecc == nvml::kSuccess || ecc == nvml::kNotSupported) reading_.has_ecc = ecc == nvml::kSuccess;
  if (reads(library_.mig_mode, &now, &pending)) reading_.mig_enabled = now != 0;
  if (reads(library_.compute_mode, &now)) reading_.compute_mode = word_of(kComputeModes, now);
}

void GpuSequence::power_and_heat() {
  milliwatts(reading_.power_w, library_.power_mw);
  either([&] { return milliwatts(reading_.power_limit_w, library_.power_limit_mw); },
         [&] { return milliwatts(reading_.power_limit_w, library_.old_power_limit_mw); });
  milliwatts(reading_.power_limit_default_w, library_.power_default_mw);
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

void GpuSequence::errors() {
  const auto count = [&](Known<std::uint64_t>& to, unsigned type, unsigned since) {
    unsigned long long errors = 0;
    if (reads(library_.ecc_errors, type, since, &errors)) to = errors;
  };
  count(reading_.volatile_.corrected, nvml::kCorrected, nvml::kVolatile);
  count(reading_.volatile_.uncorrected, nvml::kUncorrected, nvml::kVolatile);
  count(reading_.aggregate.corrected, nvml::kCorrected, nvml::kAggregate);
  count(reading_.aggregate.uncorrected, nvml::kUncorrected, nvml::kAggregate);
  nvml::SramErrors sram{};
  sram.version = nvml::version_of<nvml::SramErrors>(1);
  const auto newer = [&] {
    if (!reads(library_.sram_errors, &sram)) return false;
    reading_.aggregate_sram_uncorrected = sram.aggregate_parity + sram.aggregate_sec_ded;
    reading_.sram_threshold_exceeded = sram.threshold_exceeded != 0;
    return true;
  };
  either(newer, [&] {
    unsigned long long errors = 0;
    if (!reads(library_.old_ecc_errors, nvml::kUncorrected, nvml::kAggregate, nvml::kLocationSram,
               &errors))
      return false;
    reading_.aggregate_sram_uncorrected = errors;
    return true;
  });
  std::array<unsigned, 4> rows{};
  if (reads(library_.remapped_rows, &rows[0], &rows[1], &rows[2], &rows[3])) {
    reading_.remapped_corrected = static_cast<int>(rows[0]);
    reading_.remapped_uncorrected = static_cast<int>(rows[1]);
    reading_.remap_pending = rows[2] != 0;
    reading_.remap_failure = rows[3] != 0;
  }
}

void GpuSequence::inforom() {
  const int status = call_(library_.validate_inforom, device_);
  if (status == nvml::kSuccess || status == nvml::kCorruptedInforom)
    reading_.inforom_valid = status == nvml::kSuccess;
  else
    note(library_.validate_inforom.name, status);
}

}  // namespace shakedown::node
