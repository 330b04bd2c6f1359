// Which node each rank is on.
#pragma once

#include <string>
#include <vector>

namespace shakedown {

class OptionSet;

/// The nodes, in the order of their first ranks.
struct NodeMap {
  std::vector<std::string> names;
  std::vector<int> node_of;     // by rank
  std::vector<int> local_rank;  // by rank: its place on its node, which is its rail

  const std::string& name_of(int rank) const;
  std::vector<int> ranks_per_node() const;
};

/// From the host of every rank.
NodeMap map_nodes(const std::vector<std::string>& hosts);

/// The same; with `pretended` above 0 instead that many blocks of ranks, "node0", "node1", ...
/// Throws UsageError that names --pretend-nodes if there are fewer ranks.
NodeMap map_nodes(const std::vector<std::string>& hosts, int pretended);

/// --pretend-nodes N, hidden: for tests on one host.
void declare_pretended_nodes(OptionSet& options, int& value);

}  // namespace shakedown
