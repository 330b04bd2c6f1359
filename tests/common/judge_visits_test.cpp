// Pairs by sampled rounds, on simulated fleets: who is found, and that nobody healthy is blamed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "common/judge/visits.hpp"
#include "tests/catch.hpp"

namespace shakedown::judge {
namespace {

constexpr double kSpread = 0.01;  // between healthy nodes: tests/simulation/fleet.py
constexpr double kNoise = 0.025;  // of a visit
constexpr int kLeaf = 16;

NodeMap nodes_of(int nodes, int rails = 1) {
  NodeMap map;
  for (int node = 0; node < nodes; ++node) {
    map.names.push_back(fmt::format("n{:03}", node));
    for (int rail = 0; rail < rails; ++rail) {
      map.node_of.push_back(node);
      map.local_rank.push_back(rail);
    }
  }
  return map;
}

enum class Fault { none, pair, port, flaky_node, between_rails };

struct Cluster {
  NodeMap nodes;
  Fault fault = Fault::none;
  shakedown::Random random;
  std::vector<double> own;
  std::vector<int> bad = {};  // ranks

  Cluster(int count, int rails, Fault kind, std::uint64_t seed)
      : nodes(nodes_of(count, rails)), fault(kind), random(seed) {
    for (std::size_t i = 0; i < nodes.node_of.size(); ++i)
      own.push_back(1 + kSpread * random.normal());
    if (kind == Fault::none) return;
    const auto ranks = nodes.node_of.size();
    bad.push_back(static_cast<int>(random.below(ranks)));
    if (kind == Fault::port) own[static_cast<std::size_t>(bad[0])] *= 0.93;
    while (kind == Fault::pair && bad.size() < 2) {
      const int other = static_cast<int>(random.below(ranks));
      if (node(other) / kLeaf != node(bad[0]) / kLeaf && rail(other) == rail(bad[0]))
        bad.push_back(other);
    }
  }

  int node(int rank) const { return nodes.node_of[static_cast<std::size_t>(rank)]; }
  int rail(int rank) const { return nodes.local_rank[static_cast<std::size_t>(rank)]; }
  bool is_bad(int rank) const { return std::find(bad.begin(), bad.end(), rank) != bad.end(); }

  /// A round of visits at the same time: a flaky node fails on all of its rails.
  std::vector<Visit> visit(const std::vector<RankPair>& pairs) {
    const bool fails = random.uniform() < 0.3;
    std::vector<Visit> visits;
    for (const RankPair& pair : pairs) {
      double gbs = 50 * std::min(own[static_cast<std::size_t>(pair.first)],
                                 own[static_cast<std::size_t>(pair.second)]);
      gbs *= 1 + kNoise * random.normal();
      if (rail(pair.first) != rail(pair.second)) {
        gbs *= 0.7;  // over the spine: slower, and no fault
        if (fault == Fault::between_rails && (is_bad(pair.first) || is_bad(pair.second))) gbs /= 2;
      }
      if (fault == Fault::pair && is_bad(pair.first) && is_bad(pair.second)) gbs /= 2;
      const bool flaky = fault == Fault::flaky_node &&
                         (node(pair.first) == node(bad[0]) || node(pair.second) == node(bad[0]));
      visits.push_back({pair, gbs, flaky && fails});
    }
    return visits;
  }

  /// Whether the finding says what is wrong.
  bool matches(const PairFinding& finding) const {
    const std::set<int> named(finding.ranks.begin(), finding.ranks.end());
    switch (fault) {
      case Fault::pair:
        return finding.kind == PairFinding::path && named == std::set<int>(bad.begin(), bad.end());
      case Fault::between_rails:
        return finding.kind == PairFinding::intermittent && named == std::set<int>{bad[0]};
      case Fault::port: return finding.kind == PairFinding::slow && named == std::set<int>{bad[0]};
      case Fault::flaky_node: {
        std::set<int> of_nodes;
        for (const int rank : named) of_nodes.insert(node(rank));
        return finding.kind == PairFinding::intermittent && of_nodes == std::set<int>{node(bad[0])};
      }
      default: return false;
    }
  }
};

struct Score {
  int found = 0, blamed = 0, rounds = 0;
};

Score search(int nodes, int rails, Fault fault, int rounds, int fleets) {
  Score score;
  for (int number = 0; number < fleets; ++number) {
    Cluster fleet(nodes, rails, fault, derive_seed(static_cast<std::uint64_t>(number), 7));
    PairSearch search(fleet.nodes, rounds, static_cast<std::uint64_t>(number));
    for (auto pairs = search.next(); !pairs.empty(); pairs = search.next())
      search.add(fleet.visit(pairs));
    bool found = false;
    for (const PairFinding& finding : search.findings()) {
      if (!finding.proved) continue;
      found = found || fleet.matches(finding);
      score.blamed += !fleet.matches(finding);
    }
    score.found += found;
    score.rounds = std::max(score.rounds, search.planned());
  }
  return score;
}

}  // namespace

TEST_CASE(
    "a round visits each port once at most, no pair of ranks twice, and one in eight more shifts "
    "rails",
    "[visits]") {
  for (const int count : {2, 3, 9, 24}) {
    const NodeMap nodes = nodes_of(count, 4);
    for (const int rounds : {1, 5, 1000}) {
      PairSearch search(nodes, rounds, 3);
      std::map<std::pair<int, int>, int> met;
      int measured = 0;
      const int same_rail = std::min(rounds, count - 1 + count % 2);
      for (auto pairs = search.next(); !pairs.empty(); pairs = search.next(), ++measured) {
        std::set<int> busy;
        std::vector<Visit> visits;
        for (const RankPair& pair : pairs) {
          const int apart = (4 + pair.second % 4 - pair.first % 4) % 4;
          CHECK((measured < same_rail ? apart == 0 : apart == 1 || apart == 3));
          CHECK((busy.insert(pair.first).second && busy.insert(pair.second).second));
          ++met[{pair.first, pair.second}];
          visits.push_back({pair, 50, false});
        }
        search.add(visits);
      }
      CHECK(search.shifted() == (same_rail + 7) / 8);
      CHECK(measured == same_rail + search.shifted());
      for (const auto& [pair, times] : met) CHECK(times == 1);
      if (rounds == 1000)
        CHECK(std::count_if(met.begin(), met.end(), [](const auto& each) {
                return each.first.first % 4 == each.first.second % 4;
              }) == 4 * count * (count - 1) / 2);
      CHECK(search.findings().empty());
    }
  }
}

TEST_CASE("of 40 fleets of 232 nodes faults of paths and ports are found, and nobody else blamed",
          "[visits]") {
  struct Row {
    Fault fault;
    int rounds, least;
  };
  for (const Row& row : {Row{Fault::port, 16, 38}, Row{Fault::flaky_node, 32, 38},
                         Row{Fault::pair, 231, 38}, Row{Fault::port, 231, 38}}) {
    const Score score = search(232, 1, row.fault, row.rounds, 40);
    CAPTURE(static_cast<int>(row.fault), row.rounds, score.found, score.rounds);
    CHECK(score.found >= row.least);
    CHECK(score.blamed == 0);
  }
}

TEST_CASE("where too many pairs fail to be measured again, the rest is reported, not forgotten",
          "[visits]") {
  const NodeMap nodes = nodes_of(200);
  PairSearch search(nodes, 3, 1);
  for (auto pairs = search.next(); !pairs.empty(); pairs = search.next()) {
    std::vector<Visit> visits;
    for (const RankPair& pair : pairs) visits.push_back({pair, 50, true});
    search.add(visits);
  }
  const auto findings = search.findings();
  REQUIRE(findings.size() == 65);
  CHECK(std::any_of(findings.begin(), findings.end(), [](const PairFinding& each) {
    return each.cause.find("failed, as 299 pairs more did") == 0;
  }));
}

TEST_CASE("in 300 healthy fleets nobody is blamed", "[visits]") {
  CHECK(search(232, 1, Fault::none, 32, 300).blamed == 0);
  CHECK(search(32, 8, Fault::none, 16, 40).blamed == 0);
}

TEST_CASE("a node that fails on all of its rails is one finding", "[visits]") {
  const Score score = search(64, 8, Fault::flaky_node, 32, 20);
  CHECK(score.found >= 19);
  CHECK(score.blamed == 0);
  CHECK(search(64, 8, Fault::port, 32, 20).found >= 19);
}

TEST_CASE(
    "a port that is slow to other rails alone is found, and slower ways between rails are usual",
    "[visits]") {
  const Score score = search(64, 8, Fault::between_rails, 32, 20);
  CHECK(score.found >= 19);
  CHECK(score.blamed == 0);
}

}  // namespace shakedown::judge
