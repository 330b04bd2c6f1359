// What one host reads at one moment, and how its counters grow from one moment to the next.
#pragma once

#include <string>

#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

struct HostSample {
  std::string host;
  std::string time;       // UTC
  double elapsed_s = 0;   // since the host's monitor started
  double cpu_s = 0;       // that the process has used in that time
  double reading_ms = 0;  // that the reading then took
  HostGpus read;
};

/// Between hosts.
std::string text_of(const HostSample& sample);
HostSample host_sample_of(const std::string& text);

/// Growth of a GPU's counters since its reading before; unknown where either is, and where a
/// counter has become less.
struct Growth {
  Known<double> nvlink_sent_gbs, nvlink_received_gbs;
  Known<std::uint64_t> ecc_corrected, ecc_uncorrected;
};
Growth growth(const GpuReading& before, const GpuReading& now, double seconds);

/// The fields of a "health" record.
Json record_of(const HostSample& sample, const GpuReading& reading, const Growth& growth);

// The lines of bin/gpu_monitor: at most 110 columns, "-" for what is not known.

/// `time`: of the day, of the reading that follows.
std::string monitor_heading(const std::string& time);
std::string monitor_line(const std::string& host, const GpuReading& reading, const Growth& growth);

}  // namespace shakedown::node
