// Who meets whom when every pair of ranks is measured, and which node each rank is on.
#pragma once

#include <string>
#include <vector>

namespace shakedown::collectives {

struct RankPair {
  int first = 0;  // the lower rank
  int second = 0;
};

/// A tournament by the circle method: rank n-1 stays, the others move on by one each round. Every
/// pair meets once, every rank is in at most one pair a round: n-1 rounds of n/2 pairs, or, where n
/// is odd, n rounds in each of which one rank has a bye.
std::vector<std::vector<RankPair>> round_robin(int ranks);

/// The nodes, in the order of their first ranks.
struct NodeMap {
  std::vector<std::string> names;
  std::vector<int> node_of;     // by rank
  std::vector<int> local_rank;  // by rank: its place on its node, which is its rail
};
NodeMap map_nodes(const std::vector<std::string>& hosts);

/// Of the ranks' hosts. With `pretend` > 0 the ranks in this many blocks instead:
/// tests have one machine. Throws UsageError when there are fewer ranks than that.
NodeMap find_nodes(const std::vector<std::string>& hosts, int pretend);

}  // namespace shakedown::collectives
