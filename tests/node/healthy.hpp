// A healthy node's readings, which tests make sick.
#pragma once

#include <fmt/format.h>

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// As an idle H200 reads.
inline GpuReading healthy_h200(int index = 0, const std::string& node = "n0") {
  GpuReading gpu;
  gpu.index = index;
  gpu.uuid = fmt::format("GPU-{}-{}", node, index);
  gpu.model = "NVIDIA H200";
  gpu.pci_device_id = "10de:2335:10de:18be";
  gpu.serial = fmt::format("165{}{:03}", node, index);
  gpu.vbios = "96.00.A5.00.01";
  gpu.pci_id = fmt::format("00000000:{:02X}:00.0", 0x18 + index);
  gpu.numa_node = index / 4;
  gpu.sm_clock_mhz = 345, gpu.max_sm_clock_mhz = 1980;
  gpu.memory_clock_mhz = gpu.max_memory_clock_mhz = 3201;
  gpu.power_w = 76, gpu.power_limit_w = gpu.power_limit_default_w = 700;
  gpu.temperature_c = 31, gpu.memory_temperature_c = 36, gpu.temperature_margin_c = 54;
  gpu.utilisation_percent = gpu.memory_utilisation_percent = 0;
  gpu.memory_used_bytes = 4u << 20, gpu.memory_total_bytes = 143771ull << 20;
  gpu.throttle_reasons = 0x1;  // idle
  gpu.power_violation_ns = gpu.thermal_violation_ns = 0;
  gpu.persistence = gpu.ecc_enabled = true;
  gpu.mig_enabled = false;
  gpu.compute_mode = "default";
  gpu.volatile_ = gpu.aggregate = {0, 0};
  gpu.aggregate_sram_uncorrected = 0;
  gpu.sram_threshold_exceeded = gpu.remap_pending = gpu.remap_failure = false;
  gpu.remapped_corrected = gpu.remapped_uncorrected = 0;
  gpu.recovery_action = "none";
  gpu.pcie_generation = 1, gpu.pcie_width = 16;  // idle
  gpu.max_pcie_generation = 5, gpu.max_pcie_width = 16;
  gpu.pcie_replays = 0;
  gpu.nvlink_count = 18;
  for (int link = 0; link < 18; ++link) gpu.nvlinks.push_back({link, true, 26562, 0, 0, 0});
  gpu.fabric_state = "completed", gpu.fabric_status = "success";
  gpu.processes.emplace();
  return gpu;
}

}  // namespace shakedown::node
