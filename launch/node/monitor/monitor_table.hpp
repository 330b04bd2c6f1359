// The lines of bin/gpu_monitor: at most 110 columns, "-" for what is not known.
#pragma once

#include <string>

#include "launch/node/monitor/host_sample.hpp"

namespace shakedown::node {

/// `time`: of the day, of the reading that follows.
std::string monitor_heading(const std::string& time);
std::string monitor_line(const std::string& host, const GpuReading& reading, const Growth& growth);

/// What was reported of a GPU over the run.
class Tally {
 public:
  void add(const GpuReading& reading, const Growth& growth);

  int readings() const { return readings_; }
  /// Readings in which a call did not return in time.
  int stalled() const { return stalled_; }

  static std::string heading();
  std::string line(const std::string& host, int index) const;

 private:
  struct Values {
    void add(Known<double> value);
    double sum = 0, low = 0, high = 0;
    int count = 0;
  };
  int readings_ = 0;
  int stalled_ = 0;
  Values utilisation_, power_, temperature_, sm_clock_;
  std::uint64_t reasons_ = 0;
  int throttled_ = 0;
  int reasons_known_ = 0;
  Known<std::uint64_t> corrected_, uncorrected_;
};

}  // namespace shakedown::node
