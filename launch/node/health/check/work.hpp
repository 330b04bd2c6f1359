// A little work on all devices of the job, during which their links are looked at.
#pragma once

#include <vector>

#include "launch/node/health/check/check_options.hpp"
#include "launch/node/health/facts/node_report.hpp"
#include "launch/node/health/rules/finding.hpp"

namespace shakedown {
class MpiSession;
}

namespace shakedown::node {

/// Keeps each rank's GPU busy with copies from the host while the first rank of each node reads the
/// GPUs again, then sums over all ranks and compares every element. A rank that `corrupts` changes
/// one. Throws TimeoutError when a rank does not come: `found` then has what was found until then.
/// Collective.
void look_at_work(const CheckOptions& options, MpiSession& session,
                  const std::vector<NodeReport>& before, bool corrupts,
                  std::vector<Finding>& found);

}  // namespace shakedown::node
