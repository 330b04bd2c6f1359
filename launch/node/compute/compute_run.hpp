// A run of compute_perf: builds the tests, measures, judges, measures what is slow again.
#pragma once

#include "launch/node/compute/compute_options.hpp"
#include "launch/node/compute/results.hpp"

namespace shakedown::node {

/// `before`: by read_processes, before the backend was opened. Collective. Throws UsageError for
/// what the options and the devices do not allow.
ExitCode run_compute(const ComputeOptions& options, Backend& backend, MpiSession& session,
                     const std::vector<NodeReport>& before, Record& record);

}  // namespace shakedown::node
