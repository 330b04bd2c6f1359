// In which order the pairs of ranks are measured.
#pragma once

#include <vector>

namespace shakedown::collectives {

struct RankPair {
  int first = 0;  // the lower rank
  int second = 0;
};

/// A round-robin tournament by the circle method: rank n-1 stays, the others move on by one each
/// round. Every pair meets once, and every rank is in at most one pair per round: n-1 rounds of n/2
/// pairs or, where n is odd, n rounds in each of which one rank has a bye.
std::vector<std::vector<RankPair>> round_robin(int ranks);

}  // namespace shakedown::collectives
