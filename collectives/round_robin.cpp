#include "collectives/round_robin.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"

namespace shakedown::collectives {

std::vector<std::vector<RankPair>> round_robin(int ranks) {
  const int seats = ranks + ranks % 2;  // where the number is odd, whoever meets the last has a bye
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

NodeMap map_nodes(const std::vector<std::string>& hosts) {
  NodeMap map;
  for (const std::string& host : hosts) {
    const auto known = std::find(map.names.begin(), map.names.end(), host);
    const auto node = static_cast<int>(known - map.names.begin());
    if (known == map.names.end()) map.names.push_back(host);
    map.local_rank.push_back(
        static_cast<int>(std::count(map.node_of.begin(), map.node_of.end(), node)));
    map.node_of.push_back(node);
  }
  return map;
}

NodeMap find_nodes(const std::vector<std::string>& hosts, int pretend) {
  if (pretend == 0) return map_nodes(hosts);
  const auto ranks = static_cast<int>(hosts.size());
  if (pretend > ranks)
    throw UsageError(fmt::format("--pretend-nodes {}: this job has {} ranks only", pretend, ranks));
  std::vector<std::string> pretended;
  pretended.reserve(hosts.size());
  for (int rank = 0; rank < ranks; ++rank)
    pretended.push_back(fmt::format("node{}", rank * pretend / ranks));
  return map_nodes(pretended);
}

}  // namespace shakedown::collectives
