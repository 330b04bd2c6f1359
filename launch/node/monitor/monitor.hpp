// bin/gpu_monitor: its options, its lines, and how a GPU's counters grow.
#pragma once

#include <string>

#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown {

class OptionSet;

}  // namespace shakedown

namespace shakedown::node {

struct MonitorOptions {
  double interval_s = 1;
  double seconds = 0;  // 0: no limit
  int count = 0;       // 0: no limit
  double call_deadline_s = 5;
  double timeout_s = 300;
  std::string save_readings;
  std::string record;
  int pretend_nodes = 0;  // for tests
};

void declare_options(OptionSet& options, MonitorOptions& values);

/// Reads, prints and records the GPUs of all hosts of a job, at the same times, until a limit or a
/// signal. The lowest rank of each host reads; the others wait. Collective. Inconclusive where a
/// host's GPUs, or one of them, could not be read.
ExitCode gpu_monitor(const MonitorOptions& options, const OptionSet& set, MpiSession& session);

/// Growth of a GPU's counters since its reading before; unknown where either is, and where a
/// counter has become less.
struct Growth {
  Known<double> nvlink_sent_gbs, nvlink_received_gbs;
  Known<std::uint64_t> ecc_corrected, ecc_uncorrected;
};
Growth growth(const GpuReading& before, const GpuReading& now, double seconds);

/// Lines of at most 110 columns, "-" for what is not known. `time`: of the day, of the reading that
/// follows.
std::string monitor_heading(const std::string& time);
std::string monitor_line(const std::string& host, const GpuReading& reading, const Growth& growth);

}  // namespace shakedown::node
