// A run of compute_perf: builds the tests, measures, judges, measures what is slow again.
#pragma once

#include "launch/node/compute/compute_options.hpp"
#include "launch/node/compute/results.hpp"

namespace shakedown::node {

/// Collective. Throws UsageError for what the options and the devices do not allow.
ExitCode run_compute(const ComputeOptions& options, Backend& backend, MpiSession& session,
                     Record& record);

}  // namespace shakedown::node
