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

/// Which ranks compute together: `group_of` is an index of `names`, or names.size() for ranks that
/// sit out.
struct Grouping {
  std::string scope;
  std::vector<std::string> names;
  std::vector<int> group_of;
};
/// All ranks, all rails at once, then all nodes at once; of 3 to 64 nodes then without each.
std::vector<Grouping> groupings_of(const NodeMap& nodes);

/// Of these, but groups of one rank; adds to `verdicts` where data arrived wrong. Collective, the
/// same on every rank.
std::vector<Split> measure_splits(const NodeMap& nodes, Backend& backend, MpiSession& session,
                                  LinkMessages& messages, std::vector<Verdict>& verdicts);

}  // namespace shakedown::collectives
