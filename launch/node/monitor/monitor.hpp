// bin/gpu_monitor: the GPUs of all hosts of a job, read at the same times.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "launch/node/monitor/monitor_options.hpp"

namespace shakedown::node {

/// Reads, prints and records until a limit or a signal. The lowest rank of each host reads; the
/// others wait. Collective. Inconclusive where a host's GPUs, or one of them, could not be read.
ExitCode monitor_gpus(const MonitorOptions& options, const MpiSession& session, Record& record);

}  // namespace shakedown::node
