// Who else uses the GPUs while their rates are measured: such rates are no measure of a GPU.
#pragma once

#include <string>
#include <vector>

#include "launch/node/health/facts/node_report.hpp"

namespace shakedown::node {

/// The GPUs of all nodes with their processes, and which of those are this job's. Collective.
std::vector<NodeReport> read_processes(const MpiSession& session);

/// What else uses each rank's GPU; empty where nothing is known to. `gpus`: the ranks' UUIDs.
/// `before`: read before this job opened its GPUs; `now`: while it has them open.
std::vector<std::string> used_by_others(const std::vector<std::string>& gpus,
                                        const std::vector<NodeReport>& before,
                                        const std::vector<NodeReport>& now);

}  // namespace shakedown::node
