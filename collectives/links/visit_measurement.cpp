#include "collectives/links/visit_measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

#include "common/statistics.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kMostExact = 64;           // ranks of which each pair is measured
constexpr int kRounds = 32;              // of more
constexpr std::uint64_t kPairsSeed = 1;  // the same pairs in each run, so that two can be compared

/// Of the three links of each pair of a round, as LinkMeter has them: one way, the other, both.
std::vector<judge::Visit> visits_of(const LinkRound& round) {
  std::vector<judge::Visit> visits;
  for (std::size_t i = 0; i + 2 < round.links.size(); i += 3) {
    const Link *forward = &round.links[i], *backward = forward + 1, *both = forward + 2;
    visits.push_back(
        {{forward->from, forward->to},
         std::min(forward->bandwidth_gbs, backward->bandwidth_gbs),
         forward->wrong_elements + backward->wrong_elements + both->wrong_elements > 0});
  }
  return visits;
}

Verdict verdict_of(const judge::PairFinding& finding, const NodeMap& nodes,
                   const std::vector<Unit>& units, BackendKind backend) {
  std::set<std::string> hosts;
  for (const int rank : finding.ranks) hosts.insert(nodes.name_of(rank));
  Verdict verdict;
  verdict.outcome = finding.proved && backend == BackendKind::gpu ? Outcome::fail : Outcome::warn;
  verdict.cause = finding.cause;
  verdict.hosts = {hosts.begin(), hosts.end()};
  const int rank = finding.ranks.front();
  if (finding.kind == judge::PairFinding::path) {
    verdict.scope = Scope::link;
    verdict.name = fmt::format("{}<->{}", rank, finding.ranks[1]);
    verdict.check = "pair-path";
    verdict.class_ = Class::infrastructure;
    verdict.action = finding.proved ? "inspect the switches and cables between the two nodes"
                                    : "measure again: link_matrix --pairs all";
    return verdict;
  }
  const bool port =
      finding.ranks.size() == 1 && nodes.ranks_per_node()[static_cast<std::size_t>(
                                       nodes.node_of[static_cast<std::size_t>(rank)])] > 1;
  const std::string& uuid = units[static_cast<std::size_t>(rank)].uuid;
  verdict.scope = !port ? Scope::node : uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = !port ? nodes.name_of(rank) : uuid.empty() ? std::to_string(rank) : uuid;
  if (finding.kind == judge::PairFinding::slow) {
    verdict.check = "pair-port";
    verdict.class_ = Class::infrastructure;
    verdict.action = "inspect the adapter, cable and switch port of this node";
  } else {
    verdict.check = "pair-intermittent";
    verdict.action = "drain the node; run bin/node_check and bin/soak on it";
  }
  return verdict;
}

/// A rank that no other node has a partner for, or that had a bye in each round.
Verdict not_measured(const Unit& unit, BackendKind backend) {
  Verdict verdict;
  verdict.scope = unit.uuid.empty() ? Scope::rank : Scope::gpu;
  verdict.name = unit.uuid.empty() ? std::to_string(unit.rank) : unit.uuid;
  verdict.outcome = backend == BackendKind::gpu ? Outcome::inconclusive : Outcome::unknown;
  verdict.cause = fmt::format("rank {} met no rank of another node", unit.rank);
  verdict.action = "start the same number of ranks on each node; --pairs all";
  verdict.check = "pair-port";
  verdict.hosts = {unit.host};
  return verdict;
}

/// Of a port, its visits as samples.
judge::Observation observation_of(const Unit& unit, const std::vector<double>& gbs,
                                  const Communicator& world, std::size_t words) {
  judge::Observation observation = observed("port/one_way", "GB/s", unit);
  observation.conditions = {{"bytes", std::to_string(8 * words)}, {"transport", world.transport()}};
  observation.samples = gbs;
  return observation;
}

/// By rail, its ports' medians.
using Ports = std::map<int, std::vector<std::pair<double, int>>>;

std::string table_of(const Ports& of_rail, const judge::PairSearch& search, int rounds,
                     const NodeMap& nodes) {
  const int others = static_cast<int>(nodes.names.size()) - 1;
  const int met = search.sampled() - search.shifted();
  const std::string unseen = met < others
                                 ? fmt::format(
                                       "; each node met {} of {} others, and a bad path between "
                                       "two that did not meet is not seen (--pairs all)",
                                       met, others)
                                 : "";
  const std::vector<Column> columns{{"", "rail", 4},       {"", "ports", 6},
                                    {"median", "GB/s", 8}, {"slowest", "GB/s", 8},
                                    {"of", "rank", 6},     {"", "on", 16}};
  std::string text = fmt::format(
      "\nbetween nodes, one way: {} rounds of pairs of nodes, {} from rail to rail, {} to "
      "confirm{}\n{}",
      met, search.shifted(), rounds - search.sampled(), unseen, heading(columns));
  for (const auto& [rail, ports] : of_rail) {
    std::vector<double> medians;
    for (const auto& [median, rank] : ports) medians.push_back(median);
    const auto& [slowest, rank] = *std::min_element(ports.begin(), ports.end());
    text += row(columns, {std::to_string(rail), std::to_string(ports.size()),
                          fmt::format("{:.4g}", median_of(medians)), fmt::format("{:.4g}", slowest),
                          std::to_string(rank), nodes.name_of(rank)});
  }
  return text;
}

}  // namespace

int sampled_rounds(const std::string& pairs, const NodeMap& nodes) {
  const int count = static_cast<int>(nodes.names.size());
  const bool exact = static_cast<int>(nodes.node_of.size()) <= kMostExact;
  int rounds = pairs == "all" ? (exact ? 0 : count) : exact ? 0 : kRounds;
  if (pairs != "auto" && pairs != "all") {
    const auto [end, error] = std::from_chars(pairs.data(), pairs.data() + pairs.size(), rounds);
    if (error != std::errc() || end != pairs.data() + pairs.size() || rounds < 1)
      throw UsageError(fmt::format("--pairs {}: must be auto, all or a number of rounds", pairs));
  }
  return count > 1 ? rounds : 0;
}

VisitResults measure_visits(int rounds, const NodeMap& nodes, const std::vector<Unit>& units,
                            std::size_t words, const Backend& backend, const MpiSession& session,
                            LinkMeter& meter, Record& record, Judging& judging) {
  judge::PairSearch search(nodes, rounds, kPairsSeed);
  std::vector<std::vector<double>> gbs(units.size());  // by rank
  Progress progress("pairs of nodes", search.planned(), "rounds", session.is_root());
  int round = 0;
  for (auto pairs = search.next(); !pairs.empty(); pairs = search.next()) {
    const bool sampled = round < search.sampled() - search.shifted();
    const std::vector<judge::Visit> visits = visits_of(meter.measure(pairs, false));
    for (const judge::Visit& visit : visits)
      for (const int rank : {visit.pair.first, visit.pair.second})
        if (sampled) gbs[static_cast<std::size_t>(rank)].push_back(visit.gbs);
    search.add(visits);
    progress.update(++round);
  }

  VisitResults results;
  for (const judge::PairFinding& finding : search.findings())
    results.verdicts.push_back(verdict_of(finding, nodes, units, backend.kind));
  Ports of_rail;
  for (std::size_t rank = 0; rank < units.size(); ++rank) {
    if (gbs[rank].empty()) {
      results.verdicts.push_back(not_measured(units[rank], backend.kind));
      continue;
    }
    judging.add(observation_of(units[rank], gbs[rank], *backend.world, words), record);
    of_rail[nodes.local_rank[rank]].push_back({median_of(gbs[rank]), static_cast<int>(rank)});
  }
  results.table = table_of(of_rail, search, round, nodes);
  return results;
}

}  // namespace shakedown::collectives
