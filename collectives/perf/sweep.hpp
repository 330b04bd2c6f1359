// Runs a plan: measures every row, prints it, records it, judges it.
#pragma once

#include "collectives/perf/nccl_path.hpp"
#include "collectives/perf/plan.hpp"
#include "common/backend.hpp"
#include "common/error.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

/// Collective. Returns fail where an element was wrong or a bar was missed, else inconclusive where
/// a bar or a reference could not judge.
ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record);

}  // namespace shakedown::collectives
