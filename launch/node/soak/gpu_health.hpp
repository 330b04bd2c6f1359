// What NVML counts on this rank's GPU from one window of a soak to the next.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/soak/load.hpp"

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

// An error tried again on other GPUs of the same model: where they have it too, it is the
// program's.

/// The jurors that try the error of another one: the next two.
std::vector<int> helpers_of(int juror, int jurors);

/// `task` is what repeats this rank's error; empty: it has none. Each helper tries it by `attempt`.
/// Returns what the helpers of this rank found. Collective of the jurors.
Attempts attempts_elsewhere(const MpiSession& jurors, const std::string& task,
                            const std::function<Attempts(const std::string& task)>& attempt);

/// An error that was placed on its GPU, and how to try it on others.
struct PlacedError {
  std::size_t mismatch = 0;  // its index in `found`
  std::string task;
  std::string before;  // of the mismatch's cause, before the placing's
  Evidence evidence;
  int processor = 0;
};

/// Places it anew by what other GPUs make of it, where there are any. Collective of the jurors.
void place_by_others(const MpiSession& jurors, std::optional<PlacedError>& placed,
                     const std::string& unit,
                     const std::function<Attempts(const std::string& task)>& attempt,
                     std::vector<Mismatch>& found);

// The XIDs that the kernel reports of this rank's GPU while a soak runs.

class KernelWatch {
 public:
  /// `root`: where the machine's file system is mounted.
  explicit KernelWatch(std::string pci_id, std::string root = "");

  /// Of the GPU, of the node's NVSwitches and of no named device, since the last call or the
  /// construction. None where the messages cannot be read, or were overwritten before they were.
  std::optional<std::vector<KernelEvent>> events();

 private:
  double uptime_s() const;
  std::string kmsg() const { return root_ + "/dev/kmsg"; }

  std::string pci_id_, root_;
  double start_s_;                     // of the watch, by the uptime
  std::optional<std::uint64_t> last_;  // number of the last message that is known
};

}  // namespace shakedown::node
