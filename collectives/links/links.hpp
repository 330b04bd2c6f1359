// The links between pairs of ranks: bandwidth each way and both ways at once, and latency.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/links/options.hpp"
#include "collectives/verifier.hpp"
#include "collectives/wrong_data.hpp"
#include "common/backend.hpp"
#include "common/judge/observation.hpp"
#include "common/judge/visits.hpp"
#include "common/placement.hpp"
#include "common/record.hpp"
#include "common/units.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::collectives {

// The `metric` lines of bin/link_matrix.

class LinkObserver {
 public:
  /// `units` are under the nodes' names.
  LinkObserver(const std::vector<Unit>& units, const Paths& paths) : units_(units), paths_(paths) {}

  /// Without samples: "link/copy_engine/one_way", "link/latency".
  judge::Observation of(const std::string& metric, int from, int to) const;
  const Paths& paths() const { return paths_; }

 private:
  const std::vector<Unit>& units_;
  const Paths& paths_;
};

/// Samples of a look, as limits.json needs them of a link.
inline constexpr int kLinkSamples = 5;

/// What arrived wrong: words, and what those of the first message that has any are.
struct WrongWords {
  unsigned long long words = 0;
  Diagnosis diagnosis;
  std::string complaint;
};

// The messages of bin/link_matrix: their memory, pattern, clock and check.

/// One outgoing and one incoming message in the transport's own memory. Message i is the operands
/// from position 2 i on, so that no word equals that of the message before: a message that is lost
/// or late is found as well as one that is damaged.
class LinkMessages {
 public:
  LinkMessages(Backend& backend, const MessageSettings& settings);
  LinkMessages(const LinkMessages&) = delete;
  LinkMessages& operator=(const LinkMessages&) = delete;
  virtual ~LinkMessages() = default;

  const MessageSettings& settings() const { return settings_; }

  /// From here on, what `rank` holds of the operands is sent.
  void fill(const Operands& operands, int rank);
  /// The same into memory of this rank's device.
  void fill(View to, const Operands& operands, int rank);
  ConstView outgoing(std::size_t words, int message) const;
  View incoming(std::size_t words) const;

  /// Microseconds on the host's clock until what `enqueue` enqueues on `communicator` is done.
  virtual double time_us(Communicator& communicator, const std::function<void(Stream&)>& enqueue);

  /// Blocks until `peer` has come here too, before a clock is started. It carries the word of
  /// another message, which cannot be mistaken for the one that follows.
  void meet(Communicator& communicator, int peer, int message);

  /// Adds to `wrong` the incoming words that differ from message `message` of what `source` (a
  /// rank, or kAllRanks) holds.
  void check(const Operands& operands, int source, std::size_t words, int message,
             WrongWords& wrong);
  /// The same of words that arrived elsewhere, and are the operands' from `start` on.
  void check(View found, const Operands& operands, int source, std::uint64_t start, int message,
             WrongWords& wrong);

 protected:
  /// The same; of what was received `ranges` has one.
  virtual void check(const Received& received, int message, WrongWords& wrong);

 private:
  MessageSettings settings_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
  std::size_t outgoing_words_;
  std::unique_ptr<TransportMemory> outgoing_;
  std::unique_ptr<TransportMemory> incoming_;
  std::unique_ptr<Verifier> verifier_;
  Buffer mismatches_;
};

std::unique_ptr<LinkMessages> make_messages(Backend& backend, const MpiSession& session,
                                            const MessageSettings& settings);

/// The operands of the messages from one rank to another; both generate them as rank 0's.
Operands pattern_of(int from, int to);

/// Of `what` was exchanged, a word arrived wrong.
Verdict wrong_data(const NodeMap& nodes, int from, int to, const std::string& what,
                   const std::string& complaint, const Diagnosis& diagnosis);

/// Times of one kind of message on one rank.
struct MessageTimes {
  double time_us_p50 = 0;
  double time_us_cv = 0;
  std::uint64_t wrong_words = 0;  // that this rank received
  /// Medians of consecutive parts of the messages: what a `metric` line has as samples.
  std::array<double, kLinkSamples> parts_us{};
  int parts = 0;  // as many as there are messages, where those are fewer
};
MessageTimes times_of(const std::vector<double>& messages_us);

using judge::RankPair;
using judge::round_robin;

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
  std::uint64_t wrong_elements = 0;                      // words of 8 bytes, of all messages
  std::shared_ptr<const Diagnosis> diagnosis = nullptr;  // of these
};

/// All ranks but this one and `peer`: they may wait for the two.
std::vector<int> others_than(const MpiSession& session, int peer);

inline const char* concurrency_of(bool alone) { return alone ? "alone" : "concurrent"; }

/// The links of some pairs, and the same as `metric` lines.
struct LinkRound {
  std::vector<Link> links;
  std::vector<judge::Observation> observations;
};

/// The fields of every line.
Json identity_of(const Backend& backend);

/// As `link` lines; of a `round` of sampled pairs, whose links come in threes, as the rows of
/// `visit` tables instead, but for pairs of which a word arrived wrong.
void write_links(const std::vector<Link>& links, std::optional<int> round,
                 const MessageSettings& settings, const NodeMap& nodes, const Json& identity,
                 Record& record);

class LinkMeter {
 public:
  /// `sampled`: the record has visits.
  LinkMeter(Backend& backend, MpiSession& session, const NodeMap& nodes,
            const LinkObserver& observer, LinkMessages& messages, Record& record, bool sampled);

  /// The links of the pairs of a round, all at once or one after the other, which the record has
  /// then; collective, the same on every rank. Every message is checked.
  LinkRound measure(const std::vector<RankPair>& round, bool alone);

  /// The first word that arrived wrong, of each rank and round.
  const std::vector<Verdict>& corruptions() const { return corruptions_; }

 private:
  enum Exchange { ping_pong, forward, backward, both, exchanges };
  using Times = std::array<MessageTimes, exchanges>;
  using Diagnoses = std::array<Diagnosis, exchanges>;

  void enqueue(Exchange exchange, bool first, int peer, std::size_t words, int message,
               Stream& stream);
  MessageTimes time_exchange(Exchange exchange, bool first, int peer);
  void add_results(const RankPair& pair, const std::vector<Times>& times,
                   const std::vector<Diagnoses>& diagnoses, bool alone, LinkRound& results) const;

  Communicator& world_;
  MpiSession& session_;
  const NodeMap& nodes_;
  const LinkObserver& observer_;
  LinkMessages& messages_;
  const Backend& backend_;
  std::map<std::string, std::string> versions_;  // of the transport
  Record& record_;
  bool sampled_;
  int round_ = 0;
  std::array<WrongWords, exchanges> wrong_;  // that this rank received in this round
  std::vector<Verdict> corruptions_;
};

}  // namespace shakedown::collectives
