// The options of bin/gpu_monitor.
#pragma once

#include <memory>
#include <string>

#include "common/mpi_session.hpp"
#include "common/record.hpp"

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
  // for tests
  std::string fault;
  int pretend_nodes = 0;
};

void declare_options(OptionSet& options, MonitorOptions& values);

// bin/gpu_monitor: the GPUs of all hosts of a job, read at the same times.

class GpuMonitor {
 public:
  /// Loads the driver on each host, by its lowest rank. Collective.
  GpuMonitor(const MonitorOptions& options, const MpiSession& session);
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  /// For the "run" record: the driver of rank 0, where it is known.
  Json identity() const;

  /// Reads, prints and records until a limit or a signal. The lowest rank of each host reads; the
  /// others wait. Collective. Inconclusive where a host's GPUs, or one of them, could not be read.
  /// `cost`: gets what the monitor itself used, on rank 0, as fields of a record.
  ExitCode run(Record& record, Json& cost);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shakedown::node
