// The messages of bin/link_matrix: their memory, pattern, clock and check.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "collectives/links/link_figure.hpp"
#include "collectives/links/link_options.hpp"
#include "collectives/verifier.hpp"
#include "common/backend.hpp"
#include "common/nodes.hpp"
#include "common/verdict.hpp"

namespace shakedown::collectives {

/// One outgoing and one incoming message in the transport's own memory. Message i is the pattern
/// from position 2 i on, so that no word equals that of the message before: a message that is lost
/// or late is found as well as one that is damaged.
class LinkMessages {
 public:
  LinkMessages(Backend& backend, const MessageSettings& settings);
  LinkMessages(const LinkMessages&) = delete;
  LinkMessages& operator=(const LinkMessages&) = delete;
  virtual ~LinkMessages() = default;

  const MessageSettings& settings() const { return settings_; }

  /// From here on, what `rank` holds of the pattern is sent.
  void fill(const Pattern& pattern, int rank);
  /// The same into memory of this rank's device.
  void fill(View to, const Pattern& pattern, int rank);
  ConstView outgoing(std::size_t words, int message) const;
  View incoming(std::size_t words) const;

  /// Microseconds on the host's clock until what `enqueue` enqueues on `communicator` is done.
  virtual double time_us(Communicator& communicator, const std::function<void(Stream&)>& enqueue);

  /// Blocks until `peer` has come here too, before a clock is started. It carries the word of
  /// another message, which cannot be mistaken for the one that follows.
  void meet(Communicator& communicator, int peer, int message);

  /// The number of incoming words that differ from message `message` of what `source` (a rank, or
  /// kAllRanks) holds; the first of them is described in `complaint` where that is empty.
  unsigned long long check(const Pattern& pattern, int source, std::size_t words, int message,
                           std::string& complaint);
  /// The same of words that arrived elsewhere, and are the pattern's from `start` on.
  virtual unsigned long long check(View found, const Pattern& pattern, int source,
                                   std::uint64_t start, int message, std::string& complaint);

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

/// The pattern of the messages from one rank to another; both generate it as rank 0's.
Pattern pattern_of(int from, int to);

/// Of `what` was exchanged, a word arrived wrong.
Verdict wrong_data(const NodeMap& nodes, int from, int to, const std::string& what,
                   const std::string& complaint);

/// Times of one kind of message on one rank.
struct MessageTimes {
  double time_us_p50 = 0;
  double time_us_cv = 0;
  std::uint64_t wrong_words = 0;
  /// Medians of consecutive parts of the messages: what a `metric` line has as samples.
  std::array<double, kLinkSamples> parts_us{};
  int parts = 0;  // as many as there are messages, where those are fewer
};
MessageTimes times_of(const std::vector<double>& messages_us);

}  // namespace shakedown::collectives
