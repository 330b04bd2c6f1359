// The part of a plan that transport, devices and memory allow.
#pragma once

#include <string>

#include "collectives/perf/plan.hpp"
#include "common/backend.hpp"
#include "common/mpi_session.hpp"

namespace shakedown::collectives {

/// The communicator that --transport names. Throws UsageError where there is none.
Communicator& choose_transport(const std::string& transport, Backend& backend);

/// Throws UsageError where the transport is MPI and does not support what is planned.
void check_transport(const PerfOptions& options, const Plan& plan,
                     const Communicator& communicator);

/// Leaves out types that a rank does not support where all were requested, else throws UsageError.
/// Collective.
void limit_types(Plan& plan, const PerfOptions& options, const Communicator& communicator,
                 const Backend& backend, const MpiSession& session);

/// As nccl-tests: leaves out sizes above `most` bytes. Returns its remark, or nothing.
std::string limit_sizes(Plan& plan, std::size_t most);

}  // namespace shakedown::collectives
