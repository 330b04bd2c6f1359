// What NVML counts on this rank's GPU from one window of a soak to the next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/nvml.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

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

}  // namespace shakedown::node
