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

/// Throws where the ranks are not on the machines that were meant. A machine is a host name under
/// one boot id: two names of one machine are one, containers of one machine with names of their own
/// are several. InconclusiveError where fewer than `requested` answered (0: that is unknown);
/// UsageError where two have one name, by their boot ids or as MPI sees them: it has a `local_rank`
/// 0 on each.
void check_machines(const std::vector<std::string>& hosts, const std::vector<std::string>& boot_ids,
                    const std::vector<int>& local_ranks, int requested);

/// How many hosts launch/mpi was to start ranks on, of SHAKEDOWN_HOSTS; 0 where it did not start
/// them. Throws UsageError where it is no number.
int requested_hosts();

/// --pretend-nodes N, hidden: for tests on one host.
void declare_pretended_nodes(OptionSet& options, int& value);

}  // namespace shakedown
