// Samples a GPU while something is timed, through NVML.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/nvml.hpp"

namespace shakedown {

struct EnergyReading {
  double time_s = 0;
  double energy_j = kUnknown;
};
/// Mean power from readings, in order, of a counter that is updated only every 20 to 100 ms: the
/// energy between the first and the last reading that differ from the previous one, over their
/// time. Each follows an update by no more than the time between readings. kUnknown with fewer than
/// two such readings.
double mean_power_w(const std::vector<EnergyReading>& readings);

/// A GPU's state during a timed window, from the samples that are known.
struct GpuWindow {
  int samples = 0;
  double sm_clock_mhz = kUnknown;       // median
  double power_w = kUnknown;            // mean; mean_power_w where there is an energy counter
  double temperature_c = kUnknown;      // highest
  double memory_used_bytes = kUnknown;  // highest
  double energy_j = kUnknown;           // of a window of 0.3 s at least
  // Any sample's; none where no sample has one and some are unknown.
  std::optional<std::uint64_t> throttle_reasons;
  std::vector<std::optional<std::uint64_t>> reasons;  // of each sample
  NvlinkBytes nvlink;
};

/// Samples one GPU ten times per second on its own thread, from construction to finish(). A driver
/// that does not answer within `deadline_s` leaves everything in the window unknown.
class GpuSampler {
 public:
  /// Without NVML, or with an empty UUID, everything in the window is unknown.
  GpuSampler(std::shared_ptr<Nvml> nvml, std::string uuid, double deadline_s = 5);
  ~GpuSampler();
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  GpuWindow finish();

 private:
  struct State;
  /// Whether the thread, which read something, has ended.
  bool stop();

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace shakedown
