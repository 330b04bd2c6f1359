// What travels over the links: memory, the pattern in it, the clock and the check.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/links/link_options.hpp"
#include "collectives/verifier.hpp"
#include "common/backend.hpp"

namespace shakedown::collectives {

/// One outgoing and one incoming message in the transport's own memory. Message i is the pattern
/// from place 2 i on, so that no word is what it was in the message before: one that was lost, or
/// came late, is seen as well as one that was damaged.
class LinkMessages {
 public:
  LinkMessages(Backend& backend, const MessageSettings& settings);

  const MessageSettings& settings() const { return settings_; }

  /// What is sent from here on: what `rank` holds of the pattern.
  void fill(const Pattern& pattern, int rank);
  ConstView outgoing(std::size_t words, int message) const;
  View incoming(std::size_t words) const;

  /// Microseconds on the host's clock until what `enqueue(stream)` enqueues on `communicator` is
  /// done.
  template <class Enqueue>
  double time_us(Communicator& communicator, Enqueue&& enqueue) {
    const auto start = std::chrono::steady_clock::now();
    if (settings_.inject_delay_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(settings_.inject_delay_us));
    enqueue(*stream_);
    event_->record(*stream_);
    communicator.wait(*event_, HostWait::timed);
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }

  /// Blocks until `peer` has come here too, as a clock that is about to start wants. It carries the
  /// word of another message, which cannot stand in for the one that follows.
  void meet(Communicator& communicator, int peer, int message);

  /// The number of words that came in and are not message `message` of what `source` (a rank, or
  /// kAllRanks) holds; the first of them is described in `complaint` where that is empty.
  unsigned long long check(const Pattern& pattern, int source, std::size_t words, int message,
                           std::string& complaint);

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

/// Of one kind of message on one rank.
struct MessageTimes {
  double time_us_p50 = 0;
  double time_us_cv = 0;
  double wrong_words = 0;
};

}  // namespace shakedown::collectives
