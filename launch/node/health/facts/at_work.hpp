// What a GPU says while it works: what NVML counts, and the XIDs that the kernel reports, from one
// moment to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/nvml.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/kernel_log.hpp"

namespace shakedown::node {

class GpuReader;

/// Errors that were counted between two readings; kUnknown where one of them does not know.
struct HealthDelta {
  double ecc_corrected = kUnknown, ecc_uncorrected = kUnknown;
  double pcie_replays = kUnknown;
  double nvlink_errors = kUnknown;
};
HealthDelta delta_of(const GpuReading& before, const GpuReading& after);

class GpuHealth {
 public:
  /// `uuid` empty (cpu): everything is unknown. `stall`: a fault for tests.
  GpuHealth(std::string uuid, bool stall);
  ~GpuHealth();

  /// Since the last call, or the construction.
  HealthDelta delta();
  const std::string& serial() const { return last_.serial; }
  /// Calls of the driver that did not return in time, ever.
  const std::vector<std::string>& stalled() const { return stalled_; }
  /// Memory that waits for a reset to be replaced: as the last reading knows it.
  bool remap_pending() const { return last_.remap_pending.value_or(false); }
  /// As NVML says: GPUs for games and visualisation have none, or it is switched off.
  bool lacks_ecc() const {
    return !last_.has_ecc.value_or(true) || !last_.ecc_enabled.value_or(true);
  }

 private:
  GpuReading read();

  std::string uuid_;
  std::unique_ptr<GpuReader> reader_;
  GpuReading last_;
  std::vector<std::string> stalled_;
};

/// The XIDs that the kernel reports of a GPU.
class KernelWatch {
 public:
  /// `root`: where the machine's file system is mounted.
  explicit KernelWatch(std::string pci_id, std::string root = "");

  /// Of the GPU, of the node's NVSwitches and of no named device, since the last call or the
  /// construction. None where the messages cannot be read, or were overwritten before they were.
  std::optional<std::vector<KernelEvent>> events();

 private:
  std::string kmsg() const { return root_ + "/dev/kmsg"; }

  std::string pci_id_, root_;
  double start_s_;                     // of the watch, by the uptime
  std::optional<std::uint64_t> last_;  // number of the last message that is known
};

}  // namespace shakedown::node
