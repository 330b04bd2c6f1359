// A vote among those that did the same work, whose results must have the same bits: who is wrong.
#pragma once

#include <cstddef>
#include <vector>

namespace shakedown {

struct Ballot {
  std::size_t leader = 0;             // a voter whose vote most others share
  bool majority = false;              // more than half of all voters have it
  bool unanimous = true;              // of those that voted
  std::vector<std::size_t> outvoted;  // those that voted otherwise than the leader
};

/// Voters without a vote (null) abstain: they count as voters, and are not outvoted. One must have
/// a vote.
template <class Vote>
Ballot count_votes(const std::vector<const Vote*>& votes) {
  Ballot ballot;
  std::size_t most = 0;
  for (std::size_t v = 0; v < votes.size(); ++v) {
    if (votes[v] == nullptr) continue;
    std::size_t same = 0;
    for (const Vote* other : votes) same += other != nullptr && *other == *votes[v] ? 1 : 0;
    if (same > most) {
      most = same;
      ballot.leader = v;
    }
  }
  for (std::size_t v = 0; v < votes.size(); ++v)
    if (votes[v] != nullptr && !(*votes[v] == *votes[ballot.leader])) ballot.outvoted.push_back(v);
  ballot.majority = 2 * most > votes.size();
  ballot.unanimous = ballot.outvoted.empty();
  return ballot;
}

}  // namespace shakedown
