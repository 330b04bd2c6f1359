// Pairs of nodes without N^2: ranks of the same place on two nodes (a rail) measure one another in
// rounds of a tournament, each node with one other at a time; in a round more of each eight a rank
// measures its neighbour's place on the other node, as the way between rails is another one. After
// k rounds every port has k visits, and what they showed decides whom to visit again. Pure: it sees
// what was measured, no communicator.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/hash.hpp"
#include "common/placement.hpp"

namespace shakedown::judge {

struct RankPair {
  int first = 0;  // the lower rank
  int second = 0;
};

/// A round-robin tournament by the circle method: rank n-1 stays, the others move on by one each
/// round. Every pair meets once, and every rank is in at most one pair per round: n-1 rounds of n/2
/// pairs or, where n is odd, n rounds in each of which one rank has a bye.
std::vector<std::vector<RankPair>> round_robin(int ranks);

/// What two ranks of different nodes measured of one another.
struct Visit {
  RankPair pair;
  double gbs = 0;      // one way, of the slower direction
  bool wrong = false;  // a word arrived wrong
};

/// What came of the visits: a node, or one of its ports, that fails now and then; a path between
/// two nodes; a slow port.
struct PairFinding {
  enum Kind { intermittent, path, slow };
  Kind kind = intermittent;
  std::vector<int> ranks;  // of a path, from one node to the other: first, second, first, second
  bool proved = true;      // else it is a warning
  std::string cause;
};

/// Every pair of ranks of one node, of all nodes at the same time.
std::vector<std::vector<RankPair>> rounds_within_nodes(const NodeMap& nodes);

class PairSearch {
 public:
  /// `rounds` of the nodes' tournament, in an order that the seed draws, all of them where there
  /// are no more; then every eighth again, at least one, with rails shifted. At least two nodes.
  PairSearch(const NodeMap& nodes, int rounds, std::uint64_t seed);

  /// Who measures one another now; none: the search has ended.
  std::vector<RankPair> next();
  /// What came of it, in the same order.
  void add(const std::vector<Visit>& visits);

  int sampled() const { return static_cast<int>(sampled_); }  // rounds before those that confirm
  int shifted() const { return shifted_; }                    // of these, between rails
  /// Rounds that are planned so far.
  int planned() const { return static_cast<int>(rounds_.size()); }
  std::vector<PairFinding> findings() const;

 private:
  /// Why a pair is visited.
  enum Purpose { sample, repeat, side, again, base };
  struct Planned {
    Purpose purpose = sample;
    int subject = -1;  // a failed pair's index, or the slow rank
    Visit visit;
  };
  /// A pair that failed at least once, and what its repetitions and its sides' other visits showed.
  struct FailedPair {
    RankPair pair;
    int repeats = 0, failed = 0;
    int side_visits = 0, sides_failed = 0;
  };

  void follow_up();
  void plan(Purpose purpose, int subject, int first, int second);
  /// The places of its ranks on their nodes: visits of the same are compared.
  std::pair<int, int> lane_of(const RankPair& pair) const;
  bool failed(const Visit& visit) const;
  int partner_of(int rank, const std::vector<int>& among, int other);
  void judge_slow(std::vector<PairFinding>& found) const;
  std::vector<PairFinding> gathered(std::vector<PairFinding> found) const;

  const NodeMap& nodes_;
  std::vector<int> per_node_;
  shakedown::Random random_;
  std::vector<std::vector<Planned>> rounds_;
  std::size_t measured_ = 0;  // of the rounds
  std::size_t sampled_ = 0;   // rounds
  int shifted_ = 0;
  bool followed_up_ = false;

  // Of the sampled visits.
  std::map<std::pair<int, int>, double> usual_gbs_;  // by lane
  std::vector<int> visits_;                          // by rank
  std::vector<int> failures_;                        // by rank
  std::vector<int> intermittent_;                    // ranks
  std::vector<FailedPair> pairs_;                    // that no intermittent rank explains
  std::vector<RankPair> more_;  // failed pairs beyond those that are followed up
  double spread_ = 0;           // between ports, as a share
};

}  // namespace shakedown::judge
