// On several nodes: an all-reduce per rail, per node and without each node in turn, in
// communicators split from the whole job's.
#pragma once

#include <string>
#include <vector>

#include "collectives/links/links.hpp"

namespace shakedown::collectives {

struct Split {
  std::string scope;       // "all", "rail", "node", "without_node"
  std::string name;        // the rail's number or the node's; of "all": "all"
  double time_us_p50 = 0;  // the slowest rank's
  double busbw_gbs = 0;    // 2 (n - 1) / n * bytes / time
  std::uint64_t wrong_elements = 0;
  Diagnosis diagnosis = {};  // of these
  std::vector<int> ranks = {};
  std::vector<double> samples = {};  // busbw of parts of the messages

  std::size_t world_size() const { return ranks.size(); }
};

struct Splits {
  std::vector<Split> measured;
  std::vector<Verdict> corruptions;
};

/// All rails at once, then all nodes at once, then without each node. Groups of one rank are left
/// out, as is leaving one out of fewer than 3 nodes. Collective, the same on every rank.
Splits measure_splits(const NodeMap& nodes, Backend& backend, MpiSession& session,
                      LinkMessages& messages);

}  // namespace shakedown::collectives
