// Reads the GPUs of this host again and again. A GPU whose call has not returned is not called
// again until it has: no reading waits for it twice.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/nvml.hpp"
#include "common/nvml_library.hpp"
#include "common/watch.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

/// Makes the driver's calls for a sequence of them, which ends by GivenUp at one that is late: what
/// it uses must be its own until then, however long that is.
class Caller {
 public:
  using Clock = CallWatch::Clock;
  struct GivenUp {};
  /// How long calls may take.
  struct Limits {
    double call_s = 5;                                 // one of them
    Clock::time_point end = Clock::time_point::max();  // when the last must have returned
  };

  /// `late` runs while the named call has still not returned, in another thread.
  Caller(const Limits& limits, std::function<void(const char* call)> late)
      : watch_(
            limits.call_s, [this, late = std::move(late)] { late(call_); }, limits.end) {}

  /// The function's status; kFunctionNotFound where the library lacks it.
  template <class... Parameters, class... Arguments>
  int operator()(const nvml::Function<int(Parameters...)>& function, Arguments... arguments) {
    call_ = function.name;
    int status = 0;
    watch_.during([&] { status = nvml::call(function, arguments...); });
    if (watch_.was_late()) throw GivenUp();
    return status;
  }

 private:
  const char* call_ = nullptr;
  CallWatch watch_;
};

/// Whether a call ended so because a driver or a GPU does not have what was requested.
bool lacks(int status);
/// Notes an error of a call under its name, but not that.
void note_failure(const nvml::Library& library, const std::string& function, int status,
                  std::vector<std::string>& failed);

/// The sequence of calls that fills a reading whose index is given. Up to a call that does not
/// return the reading is complete. `inforom`: also verifies its checksums, which reads the GPU's
/// flash.
void read_gpu(const nvml::Library& library, Caller& call, GpuReading& reading, bool inforom);

class GpuReader {
 public:
  /// Opens NVML. Where that fails every reading says why. `deadline_s`: of each call. `library`:
  /// another file in NVML's place, for tests. `whole_s`: of all that this reader ever does, four
  /// fifths of it for opening NVML, which is slow where the driver has to initialize its GPUs
  /// first.
  explicit GpuReader(double deadline_s, const std::string& library = nvml::library_name(),
                     double whole_s = INFINITY);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// The versions, or why there are no GPUs to read; the last readings.
  const HostGpus& host() const { return host_; }
  /// All GPUs at the same time. Takes the longest of their times, which is the deadline above that
  /// of the other GPUs where one's call newly does not return. Makes no GPU context, never throws
  /// for what a driver does: that is a finding. `inforom`: its checksums too, which reads the GPUs'
  /// flash.
  const HostGpus& read(bool inforom = false);

 private:
  template <class Result>
  class Task;
  Caller::Limits limits(double share) const;

  const double deadline_s_, whole_s_;
  const Caller::Clock::time_point made_ = Caller::Clock::now();
  std::shared_ptr<const nvml::Library> library_;
  HostGpus host_;
  std::vector<std::unique_ptr<Task<GpuReading>>> tasks_;  // of each GPU's last reading
};

// What a GPU counts while it works, from one moment to the next.

/// Errors that were counted between two readings; kUnknown where one of them does not know.
struct HealthDelta {
  double ecc_corrected = kUnknown, ecc_uncorrected = kUnknown;
  double pcie_replays = kUnknown;
  double nvlink_errors = kUnknown;
};

class GpuHealth {
 public:
  /// `uuid` empty (cpu): everything is unknown.
  explicit GpuHealth(std::string uuid);

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
