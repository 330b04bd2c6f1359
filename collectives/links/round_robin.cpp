#include "collectives/links/round_robin.hpp"

#include <algorithm>

namespace shakedown::collectives {

std::vector<std::vector<RankPair>> round_robin(int ranks) {
  const int seats = ranks + ranks % 2;  // if odd, the opponent of the last seat has a bye
  const int circle = seats - 1;
  std::vector<std::vector<RankPair>> rounds;
  for (int round = 0; round < circle; ++round) {
    auto& pairs = rounds.emplace_back();
    const auto meet = [&](int a, int b) {
      if (std::max(a, b) < ranks) pairs.push_back({std::min(a, b), std::max(a, b)});
    };
    meet(round, circle);
    for (int i = 1; i < seats / 2; ++i) meet((round + i) % circle, (round - i + circle) % circle);
  }
  return rounds;
}

}  // namespace shakedown::collectives
