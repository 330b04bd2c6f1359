// The options of bin/gpu_monitor.
#pragma once

#include <string>

#include "common/exit_code.hpp"
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

/// bin/gpu_monitor: reads, prints and records the GPUs of all hosts of a job, at the same times,
/// until a limit or a signal. The lowest rank of each host reads; the others wait. Collective.
/// Inconclusive where a host's GPUs, or one of them, could not be read.
ExitCode gpu_monitor(const MonitorOptions& options, const OptionSet& set, MpiSession& session);

}  // namespace shakedown::node
