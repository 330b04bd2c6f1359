// The links between pairs of ranks: bandwidth each way and both ways at once, and latency.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "collectives/links/link_messages.hpp"
#include "collectives/links/round_robin.hpp"
#include "common/nodes.hpp"
#include "common/verdict.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::collectives {

/// Messages from one rank to another, or, bidirectional, both ways at once.
struct Link {
  int from = 0;
  int to = 0;
  bool bidirectional = false;
  bool alone = false;        // no other pair was busy
  double bandwidth_gbs = 0;  // 10^9 bytes/s; bidirectional: both directions together
  double latency_us = 0;     // half of a round trip of 8 bytes; not where bidirectional
  double time_us_p50 = 0;    // of a message, on the clock that ran longer
  double time_us_cv = 0;
  std::uint64_t wrong_elements = 0;  // words of 8 bytes, of all messages
};

inline const char* concurrency_of(bool alone) { return alone ? "alone" : "concurrent"; }

/// The links of some pairs, and the same as figures.
struct LinkRound {
  std::vector<Link> links;
  std::vector<LinkFigure> figures;
};

class LinkMeter {
 public:
  LinkMeter(Backend& backend, MpiSession& session, const NodeMap& nodes, LinkMessages& messages);

  /// The links of the pairs of a round, all at once or one after the other; collective, the same on
  /// every rank. Every message is checked.
  LinkRound measure(const std::vector<RankPair>& round, bool alone);

  /// The first word that arrived wrong, of each rank and round.
  const std::vector<Verdict>& corruptions() const { return corruptions_; }

 private:
  enum Exchange { ping_pong, forward, backward, both, exchanges };
  using Times = std::array<MessageTimes, exchanges>;

  void enqueue(Exchange exchange, bool first, int peer, std::size_t words, int message,
               Stream& stream);
  MessageTimes time_exchange(Exchange exchange, bool first, int peer);
  LinkRound results_of(const RankPair& pair, const std::vector<Times>& times, bool alone) const;

  Communicator& world_;
  MpiSession& session_;
  const NodeMap& nodes_;
  LinkMessages& messages_;
  std::string complaint_;  // of this rank in this round
  std::vector<Verdict> corruptions_;
};

}  // namespace shakedown::collectives
