#include "common/judge/visits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/statistics.hpp"

namespace shakedown::judge {
namespace {

constexpr std::size_t kShiftedOneIn = 8;  // rounds
constexpr double kFails = 0.85;     // of what is usual on the lane: below it a visit has failed
constexpr int kPartners = 3;        // that failed with nobody else: it is not they
constexpr int kRepeats = 5;         // of a failed pair
constexpr int kSideVisits = 10;     // of each of its sides, with others
constexpr double kSuspect = 0.965;  // of the median: visited again, if that far
constexpr double kSuspectSpreads = 3.5;  // out
constexpr int kAgain = 32;               // visits of a suspect with the better half
constexpr double kSlow = 0.95;           // of what they reach with one another
constexpr double kSlowSpreads = 5;
constexpr double kNodeSpread = 0.01;          // between the networks of healthy nodes
constexpr std::size_t kLeastPorts = 8;        // of a rail, or they have no spread
constexpr std::size_t kMostFailedPairs = 64;  // more are no matter of pairs

/// The standard deviation of what is normal but for a few.
double robust_deviation(const std::vector<double>& values) {
  return 1.4826 * summarize(values).mad;
}

template <class T>
void shuffle(std::vector<T>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

bool has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

/// "3 of 16 visits".
std::string visits_text(int count, int of) { return fmt::format("{} of {} visits", count, of); }

std::vector<std::vector<int>> ranks_by_node(const NodeMap& nodes) {
  std::vector<std::vector<int>> ranks(nodes.names.size());
  for (std::size_t rank = 0; rank < nodes.node_of.size(); ++rank)
    ranks[at(nodes.node_of[rank])].push_back(static_cast<int>(rank));
  return ranks;
}

}  // namespace

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

std::vector<std::vector<RankPair>> rounds_within_nodes(const NodeMap& nodes) {
  std::vector<std::vector<RankPair>> rounds;
  for (const std::vector<int>& ranks : ranks_by_node(nodes)) {
    const auto of_node = round_robin(static_cast<int>(ranks.size()));
    rounds.resize(std::max(rounds.size(), of_node.size()));
    for (std::size_t round = 0; round < of_node.size(); ++round)
      for (const RankPair& pair : of_node[round])
        rounds[round].push_back({ranks[at(pair.first)], ranks[at(pair.second)]});
  }
  return rounds;
}

PairSearch::PairSearch(const NodeMap& nodes, int rounds, std::uint64_t seed)
    : nodes_(nodes), per_node_(nodes.ranks_per_node()), random_(seed) {
  std::vector<std::vector<int>> ranks = ranks_by_node(nodes);
  shuffle(ranks, random_);
  auto tournament = round_robin(static_cast<int>(ranks.size()));
  shuffle(tournament, random_);
  tournament.resize(std::min(tournament.size(), at(rounds)));
  const auto add_round = [&](const std::vector<RankPair>& round, std::size_t shift) {
    std::vector<Planned> planned;
    for (const RankPair& pair : round) {
      const auto& one = ranks[at(pair.first)];
      const auto& other = ranks[at(pair.second)];
      const std::size_t rails = std::min(one.size(), other.size());
      if (rails <= shift) continue;
      for (std::size_t rail = 0; rail < rails; ++rail) {
        const auto [first, second] = std::minmax(one[rail], other[(rail + shift) % rails]);
        planned.push_back({sample, -1, {{first, second}}});
      }
    }
    if (!planned.empty()) rounds_.push_back(planned);
  };
  for (const auto& round : tournament) add_round(round, 0);
  const std::size_t same_rail = rounds_.size();
  for (std::size_t round = 0; round < tournament.size(); round += kShiftedOneIn)
    add_round(tournament[round], 1);
  sampled_ = rounds_.size();
  shifted_ = static_cast<int>(sampled_ - same_rail);
}

std::vector<RankPair> PairSearch::next() {
  if (measured_ == rounds_.size() && !std::exchange(followed_up_, true)) follow_up();
  std::vector<RankPair> pairs;
  if (measured_ < rounds_.size())
    for (const Planned& planned : rounds_[measured_]) pairs.push_back(planned.visit.pair);
  return pairs;
}

void PairSearch::add(const std::vector<Visit>& visits) {
  auto& round = rounds_[measured_++];
  for (std::size_t i = 0; i < round.size(); ++i) round[i].visit = visits[i];
}

std::pair<int, int> PairSearch::lane_of(const RankPair& pair) const {
  return std::minmax({nodes_.local_rank[at(pair.first)], nodes_.local_rank[at(pair.second)]});
}

bool PairSearch::failed(const Visit& visit) const {
  return visit.wrong || visit.gbs < kFails * usual_gbs_.at(lane_of(visit.pair));
}

/// In the first of the rounds that follow in which neither is busy.
void PairSearch::plan(Purpose purpose, int subject, int first, int second) {
  const RankPair pair{std::min(first, second), std::max(first, second)};
  std::size_t round = sampled_;
  const auto busy = [&](const Planned& planned) {
    const RankPair& other = planned.visit.pair;
    return other.first == pair.first || other.first == pair.second || other.second == pair.first ||
           other.second == pair.second;
  };
  while (round < rounds_.size() && std::any_of(rounds_[round].begin(), rounds_[round].end(), busy))
    ++round;
  if (round == rounds_.size()) rounds_.emplace_back();
  rounds_[round].push_back({purpose, subject, {pair}});
}

/// One of `among` on the rank's rail and another node than its own and that of `other`; -1: none.
int PairSearch::partner_of(int rank, const std::vector<int>& among, int other) {
  std::vector<int> good;
  for (const int each : among)
    if (nodes_.local_rank[at(each)] == nodes_.local_rank[at(rank)] &&
        nodes_.node_of[at(each)] != nodes_.node_of[at(rank)] &&
        nodes_.node_of[at(each)] != nodes_.node_of[at(other)])
      good.push_back(each);
  return good.empty() ? -1 : good[random_.below(good.size())];
}

void PairSearch::follow_up() {
  const std::size_t ranks = nodes_.node_of.size();
  std::map<std::pair<int, int>, std::vector<double>> of_lane;
  std::vector<std::vector<double>> of_rank(ranks);  // on their own rails
  std::vector<Visit> visits;
  for (const auto& round : rounds_)
    for (const Planned& planned : round) {
      const Visit& visit = planned.visit;
      visits.push_back(visit);
      const auto lane = lane_of(visit.pair);
      of_lane[lane].push_back(visit.gbs);
      if (lane.first != lane.second) continue;
      for (const int rank : {visit.pair.first, visit.pair.second})
        of_rank[at(rank)].push_back(visit.gbs);
    }
  for (const auto& [lane, gbs] : of_lane) usual_gbs_[lane] = median_of(gbs);

  visits_.assign(ranks, 0);
  failures_.assign(ranks, 0);
  std::vector<RankPair> failed_pairs;
  for (const Visit& visit : visits) {
    for (const int rank : {visit.pair.first, visit.pair.second}) ++visits_[at(rank)];
    if (!failed(visit)) continue;
    failed_pairs.push_back(visit.pair);
    for (const int rank : {visit.pair.first, visit.pair.second}) ++failures_[at(rank)];
  }

  // A rank whose partners failed with nobody else.
  std::vector<std::set<int>> lone(ranks);
  for (const RankPair& pair : failed_pairs) {
    if (failures_[at(pair.second)] == 1) lone[at(pair.first)].insert(pair.second);
    if (failures_[at(pair.first)] == 1) lone[at(pair.second)].insert(pair.first);
  }
  std::vector<int> good;  // never failed
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (lone[rank].size() >= kPartners) intermittent_.push_back(static_cast<int>(rank));
    if (failures_[rank] == 0 && visits_[rank] > 0) good.push_back(static_cast<int>(rank));
  }

  for (const RankPair& pair : failed_pairs) {
    if (has(intermittent_, pair.first) || has(intermittent_, pair.second)) continue;
    if (pairs_.size() == kMostFailedPairs) {
      more_.push_back(pair);
      continue;
    }
    pairs_.push_back({pair});
    const int index = static_cast<int>(pairs_.size()) - 1;
    for (int i = 0; i < kRepeats; ++i) plan(repeat, index, pair.first, pair.second);
    for (const auto& [me, other] : {std::pair(pair.first, pair.second), {pair.second, pair.first}})
      for (int i = 0; i < kSideVisits; ++i)
        if (const int partner = partner_of(me, good, other); partner >= 0)
          plan(side, index, me, partner);
  }

  // A port whose median is low: again, with the better half of its rail.
  const int rails = *std::max_element(per_node_.begin(), per_node_.end());
  for (int rail = 0; rail < rails; ++rail) {
    std::map<int, double> medians;
    std::vector<double> values;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (nodes_.local_rank[rank] != rail || of_rank[rank].empty()) continue;
      const double median = median_of(of_rank[rank]);
      medians[static_cast<int>(rank)] = median;
      values.push_back(median);
    }
    if (values.size() < kLeastPorts) continue;
    const double middle = median_of(values);
    const double deviation = robust_deviation(values);
    spread_ = std::max({spread_, kNodeSpread, deviation / middle});
    std::vector<int> better;
    std::vector<int> slow;
    for (const auto& [rank, median] : medians) {
      if (median >= middle && has(good, rank)) better.push_back(rank);
      if (median < kSuspect * middle && middle - median > kSuspectSpreads * deviation &&
          !has(intermittent_, rank))
        slow.push_back(rank);
    }
    if (slow.empty() || better.size() < 4) continue;
    for (const int rank : slow) {
      for (int i = 0; i < kAgain; ++i)
        if (const int partner = partner_of(rank, better, rank); partner >= 0)
          plan(again, rank, rank, partner);
    }
    for (int i = 0; i < 4 * kAgain; ++i) {
      const int one = better[random_.below(better.size())];
      if (const int other = partner_of(one, better, one); other >= 0)
        plan(base, slow.front(), one, other);
    }
  }
}

void PairSearch::judge_slow(std::vector<PairFinding>& found) const {
  std::map<int, std::vector<double>> again_gbs, base_gbs;  // by rank, by rail
  for (std::size_t round = sampled_; round < measured_; ++round)
    for (const Planned& planned : rounds_[round]) {
      if (planned.purpose == again) again_gbs[planned.subject].push_back(planned.visit.gbs);
      if (planned.purpose == base)
        base_gbs[nodes_.local_rank[at(planned.subject)]].push_back(planned.visit.gbs);
    }
  for (const auto& [rank, gbs] : again_gbs) {
    const double usual = median_of(base_gbs.at(nodes_.local_rank[at(rank)]));
    const double share = median_of(gbs) / usual;
    if (share >= kSuspect + (1 - kSuspect) / 4) continue;
    const bool proved =
        share < kSlow && 1 - share > kSlowSpreads * std::min(spread_, 2 * kNodeSpread);
    found.push_back(
        {PairFinding::slow,
         {rank},
         proved,
         fmt::format(
             "{:.4g} GB/s in {} visits of the better half of its rail, {:.1f} % of the {:.4g} GB/s "
             "that they reach with one another",
             median_of(gbs), gbs.size(), 100 * share, usual)});
  }
}

std::vector<PairFinding> PairSearch::findings() const {
  std::vector<PairFinding> found;
  for (const int rank : intermittent_)
    found.push_back({PairFinding::intermittent,
                     {rank},
                     true,
                     fmt::format("{} failed, with partners that failed with no other",
                                 visits_text(failures_[at(rank)], visits_[at(rank)]))});
  std::vector<FailedPair> pairs = pairs_;
  for (std::size_t round = sampled_; round < measured_; ++round)
    for (const Planned& planned : rounds_[round]) {
      if (planned.purpose != repeat && planned.purpose != side) continue;
      FailedPair& pair = pairs[at(planned.subject)];
      ++(planned.purpose == repeat ? pair.repeats : pair.side_visits);
      (planned.purpose == repeat ? pair.failed : pair.sides_failed) += failed(planned.visit);
    }
  for (const FailedPair& each : pairs) {
    const bool proved = each.failed == kRepeats && each.side_visits > 0 && each.sides_failed == 0;
    found.push_back({PairFinding::path,
                     {each.pair.first, each.pair.second},
                     proved,
                     fmt::format("failed, then in {} again; its sides with others in {}",
                                 visits_text(each.failed, each.repeats),
                                 visits_text(each.sides_failed, each.side_visits))});
  }
  if (!more_.empty())
    found.push_back({PairFinding::path,
                     {more_.front().first, more_.front().second},
                     false,
                     fmt::format("failed, as {} pairs more did, which are too many to be measured "
                                 "again: what they share is at fault",
                                 more_.size() - 1 + pairs_.size())});
  judge_slow(found);
  return gathered(std::move(found));
}

/// Where three quarters of a node's ranks, or of the rails between two nodes, have the same: once.
std::vector<PairFinding> PairSearch::gathered(std::vector<PairFinding> found) const {
  using Key = std::tuple<int, bool, int, int>;
  std::map<Key, std::vector<PairFinding>> groups;
  for (PairFinding& each : found)
    groups[{each.kind, each.proved, nodes_.node_of[at(each.ranks.front())],
            nodes_.node_of[at(each.ranks.back())]}]
        .push_back(std::move(each));
  std::vector<PairFinding> result;
  for (auto& [key, group] : groups) {
    const int rails = std::min(per_node_[at(std::get<2>(key))], per_node_[at(std::get<3>(key))]);
    if (group.size() < 2 || 4 * static_cast<int>(group.size()) < 3 * rails) {
      std::move(group.begin(), group.end(), std::back_inserter(result));
      continue;
    }
    PairFinding whole = group.front();
    for (std::size_t i = 1; i < group.size(); ++i)
      whole.ranks.insert(whole.ranks.end(), group[i].ranks.begin(), group[i].ranks.end());
    whole.cause =
        whole.kind == PairFinding::path
            ? fmt::format("{} pairs of ranks; the first: {}", group.size(), whole.cause)
            : fmt::format("{} of {} rails; the first: {}", group.size(), rails, whole.cause);
    result.push_back(std::move(whole));
  }
  return result;
}

}  // namespace shakedown::judge
