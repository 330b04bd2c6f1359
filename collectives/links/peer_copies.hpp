// What two GPUs of one node copy to and from each other's memory: by the copy engine, by stores of
// the SMs and by their loads. Each rank's process maps the memory of its node's other ranks.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/links/links.hpp"
#include "common/communicator.hpp"
#include "common/placement.hpp"
#include "common/record.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::collectives {

/// Collective, and the same on every rank.
class PeerCopies {
 public:
  /// `found` is called with the first word that arrived wrong, of each pair and round, when it is
  /// seen.
  PeerCopies(Backend& backend, MpiSession& session, const NodeMap& nodes,
             const LinkObserver& observer, LinkMessages& messages,
             std::function<void(const Verdict&)> found);

  /// Every pair of each node. Pairs of an NVLink class are measured at once, as they share no
  /// wires; others of a node one after the other. Every byte that arrives is checked.
  std::vector<judge::Observation> measure();
  /// One of these again, while no other pair is busy.
  judge::Observation measure_again(const judge::Observation& copy);

  /// Why pairs could not be measured.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  enum Manner { copy_engine, sm_store, sm_load, manners };
  enum Way { forward, backward, both, ways };
  static constexpr std::size_t kKinds = std::size_t{manners} * ways;
  struct Times {
    std::array<double, kLinkSamples> ms{};
    std::uint64_t wrong = 0;
  };
  using AllTimes = std::array<Times, kKinds>;
  struct Turn {
    RankPair pair;
    int turn = 0;  // those with the same are measured at once
  };

  static const char* name_of(Manner manner);
  void meet(int peer);
  std::string problem_of(const RankPair& pair) const;
  std::size_t words_of(const RankPair& pair) const;
  std::vector<Turn> turns_of(const std::vector<RankPair>& local_pairs) const;
  std::vector<judge::Observation> measure(const std::vector<Turn>& turns,
                                          const std::vector<bool>& kinds);
  AllTimes time_pair(const RankPair& pair, const std::vector<bool>& kinds);
  Times time_copies(Manner manner, Way way, bool first, int peer, std::size_t words);
  judge::Observation observation_of(Manner manner, Way way, const RankPair& pair,
                                    const std::vector<AllTimes>& times) const;
  View outgoing(int rank, std::size_t words, int message) const;
  View incoming(int rank, std::size_t words) const;

  Backend& backend_;
  MpiSession& session_;
  const NodeMap& nodes_;
  const LinkObserver& observer_;
  LinkMessages& messages_;
  const std::function<void(const Verdict&)> found_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> start_;
  std::unique_ptr<Event> end_;
  Buffer meeting_;         // a byte to send, one to receive
  std::size_t words_ = 0;  // of the largest copy; 0: memory does not suffice
  std::vector<std::vector<std::string>> problems_;  // [rank][local rank]
  WrongWords wrong_;                                // that this rank received in this round
  std::vector<std::string> remarks_;
  Buffer memory_;  // what is copied, then where copies arrive
  std::unique_ptr<Communicator> node_;
  std::unique_ptr<PeerMemory> mapped_;  // of the node's ranks; ends first
};

}  // namespace shakedown::collectives
