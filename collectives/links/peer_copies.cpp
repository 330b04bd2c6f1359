#include "collectives/links/peer_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/mpi_session.hpp"

namespace shakedown::collectives {
namespace {

constexpr int kWarmup = 2;
constexpr int kCopies = 4;  // of a sample
constexpr std::size_t kWordBytes = 8;
// Words from one sample's data to the next's: whole pages, as copy engines need 25 % longer, both
// ways, for what begins within one (630 instead of 784 GB/s on two H200).
constexpr std::size_t kMessageStep = (std::size_t{2} << 20) / kWordBytes;
constexpr std::size_t kMostWords =
    (std::size_t{1} << 30) / kWordBytes;  // over NVLink: 11 ms a sample
constexpr std::size_t kPcieWords = (std::size_t{128} << 20) / kWordBytes;  // over PCIe: 20 ms
constexpr std::size_t kLeastWords = (std::size_t{16} << 20) / kWordBytes;
constexpr std::size_t kSpare = kMessageStep * (kWarmup + kLinkSamples);

}  // namespace

PeerCopies::PeerCopies(Backend& backend, MpiSession& session, const NodeMap& nodes,
                       const LinkObserver& observer, LinkMessages& messages,
                       std::function<void(const Verdict&)> found)
    : backend_(backend),
      session_(session),
      nodes_(nodes),
      observer_(observer),
      messages_(messages),
      found_(std::move(found)),
      stream_(backend.device->make_stream()),
      start_(backend.device->make_event()),
      end_(backend.device->make_event()),
      meeting_(*backend.device, 2, Place::host) {
  const std::vector<double> room =
      session.all_gather(static_cast<double>(backend.device->memory().free_bytes) / 4);
  const double least = *std::min_element(room.begin(), room.end()) / kWordBytes;
  words_ = std::min(kMostWords, static_cast<std::size_t>(least) / kMessageStep * kMessageStep);
  if (words_ < kLeastWords) {
    words_ = 0;
    remarks_.push_back("copies between peers: not enough free GPU memory");
    return;
  }
  memory_ = Buffer(*backend.device, (2 * words_ + kSpare) * kWordBytes);
  const auto rank = static_cast<std::size_t>(session.rank());
  node_ = backend.host->split(nodes.node_of[rank], session.rank());
  mapped_ = shakedown::gpu::map_reachable(*node_, *backend.device, memory_.view(DataType::uint64));
  for (const std::string& text : session.all_gather(json_text(mapped_->problems())))
    problems_.push_back(Json::parse(text).get<std::vector<std::string>>());
}

const char* PeerCopies::name_of(Manner manner) {
  constexpr const char* kNames[] = {"copy_engine", "sm_store", "sm_load"};
  return kNames[manner];
}

/// Where one cannot map the other's memory, neither is measured.
std::string PeerCopies::problem_of(const RankPair& pair) const {
  const auto reason = [&](int rank, int other) {
    return problems_[static_cast<std::size_t>(rank)]
                    [static_cast<std::size_t>(nodes_.local_rank[static_cast<std::size_t>(other)])];
  };
  const std::string first = reason(pair.first, pair.second);
  return first.empty() ? reason(pair.second, pair.first) : first;
}

std::size_t PeerCopies::words_of(const RankPair& pair) const {
  return observer_.paths().between(pair.first, pair.second).over_nvlink()
             ? words_
             : std::min(words_, kPcieWords);
}

View PeerCopies::outgoing(int rank, std::size_t words, int message) const {
  const auto local = static_cast<std::size_t>(nodes_.local_rank[static_cast<std::size_t>(rank)]);
  return mapped_->views()[local].slice(kMessageStep * static_cast<std::size_t>(message), words);
}

View PeerCopies::incoming(int rank, std::size_t words) const {
  const auto local = static_cast<std::size_t>(nodes_.local_rank[static_cast<std::size_t>(rank)]);
  return mapped_->views()[local].slice(words_ + kSpare, words);
}

/// `local_pairs` of local ranks, on every node that has both.
std::vector<PeerCopies::Turn> PeerCopies::turns_of(const std::vector<RankPair>& local_pairs) const {
  std::vector<std::vector<int>> ranks(nodes_.names.size());
  for (std::size_t r = 0; r < nodes_.node_of.size(); ++r)
    ranks[static_cast<std::size_t>(nodes_.node_of[r])].push_back(static_cast<int>(r));
  std::vector<Turn> turns;
  for (const std::vector<int>& node : ranks) {
    int next = 0;
    for (const RankPair& local : local_pairs) {
      if (local.second >= static_cast<int>(node.size())) continue;
      const RankPair pair{node[static_cast<std::size_t>(local.first)],
                          node[static_cast<std::size_t>(local.second)]};
      turns.push_back(
          {pair, observer_.paths().between(pair.first, pair.second).over_nvlink() ? 0 : next++});
    }
  }
  return turns;
}

/// Over the host, so that no GPU polls while it is measured. Twice: the first may end the sleep of
/// a rank that has waited for long.
void PeerCopies::meet(int peer) {
  const int local = nodes_.local_rank[static_cast<std::size_t>(peer)];
  const View bytes = meeting_.view(DataType::uint8);
  for (int time = 0; time < 2; ++time)
    node_->group([&] {
      node_->send(bytes.slice(0, 1), local, *stream_);
      node_->recv(bytes.slice(1, 1), local, *stream_);
    });
}

PeerCopies::Times PeerCopies::time_copies(Manner manner, Way way, bool first, int peer,
                                          std::size_t words) {
  const int rank = session_.rank();
  const bool sends = way != (first ? backward : forward);
  const bool receives = way != (first ? forward : backward);
  const bool copies = manner == sm_load ? receives : sends;
  const int from = manner == sm_load ? peer : rank;
  const int to = manner == sm_load ? rank : peer;
  const auto by =
      manner == copy_engine ? shakedown::gpu::CopyBy::engine : shakedown::gpu::CopyBy::sms;

  const std::vector<int> others = others_than(session_, peer);
  Times times;
  const auto wrong_before = wrong_.words;
  for (int message = 0; message < kWarmup + kLinkSamples; ++message) {
    session_.progress(others);  // who may wait for this pair
    meet(peer);
    if (copies) {
      start_->record(*stream_);
      for (int copy = 0; copy < kCopies; ++copy)
        shakedown::gpu::copy_of_peers(incoming(to, words), outgoing(from, words, message), by,
                                      *stream_);
      end_->record(*stream_);
      end_->synchronize();
      if (message >= kWarmup)
        times.ms[static_cast<std::size_t>(message - kWarmup)] = end_->milliseconds_since(*start_);
    }
    meet(peer);  // what was sent has arrived
    if (receives)
      messages_.check(incoming(rank, words), pattern_of(peer, rank), 0,
                      kMessageStep * static_cast<std::uint64_t>(message), message, wrong_);
  }
  times.wrong = wrong_.words - wrong_before;
  return times;
}

PeerCopies::AllTimes PeerCopies::time_pair(const RankPair& pair, const std::vector<bool>& kinds) {
  const int rank = session_.rank();
  const bool first = rank == pair.first;
  const int peer = first ? pair.second : pair.first;
  const std::size_t words = words_of(pair);
  messages_.fill(outgoing(rank, words_ + kSpare, 0), pattern_of(rank, peer), 0);
  AllTimes times{};
  for (std::size_t kind = 0; kind < kKinds; ++kind)
    if (kinds[kind])
      times[kind] = time_copies(static_cast<Manner>(kind / ways), static_cast<Way>(kind % ways),
                                first, peer, words);
  return times;
}

judge::Observation PeerCopies::observation_of(Manner manner, Way way, const RankPair& pair,
                                              const std::vector<AllTimes>& times) const {
  judge::Observation copy = observer_.of(
      fmt::format("link/{}/{}", name_of(manner), way == both ? "both_ways" : "one_way"),
      way == backward ? pair.second : pair.first, way == backward ? pair.first : pair.second);
  if (words_ == 0)
    copy.taken = judge::Taken::out_of_memory;
  else if (!problem_of(pair).empty())
    copy.taken = judge::Taken::not_supported;
  if (copy.taken != judge::Taken::measured) return copy;
  const std::size_t bytes = kWordBytes * words_of(pair);
  copy.conditions["bytes"] = std::to_string(bytes);
  const std::size_t kind = static_cast<std::size_t>(manner) * ways + way;
  const Times& a = times[static_cast<std::size_t>(pair.first)][kind];
  const Times& b = times[static_cast<std::size_t>(pair.second)][kind];
  const double gb = (way == both ? 2 : 1) * kCopies * static_cast<double>(bytes) / 1e9;
  for (std::size_t i = 0; i < kLinkSamples; ++i)  // of the two the longer; one of them may be 0
    copy.samples.push_back(gb / (std::max(a.ms[i], b.ms[i]) / 1e3));
  if (a.wrong + b.wrong > 0) copy.check = judge::Check::wrong;
  return copy;
}

std::vector<judge::Observation> PeerCopies::measure(const std::vector<Turn>& turns,
                                                    const std::vector<bool>& kinds) {
  const int rank = session_.rank();
  const auto mine = std::find_if(turns.begin(), turns.end(), [&](const Turn& turn) {
    return turn.pair.first == rank || turn.pair.second == rank;
  });
  const bool plays = mine != turns.end() && words_ > 0 && problem_of(mine->pair).empty();
  int last = 0;
  for (const Turn& turn : turns) last = std::max(last, turn.turn);

  wrong_ = {};
  AllTimes times{};
  session_.barrier();
  for (int turn = 0; turn <= last; ++turn) {
    if (plays && mine->turn == turn) times = time_pair(mine->pair, kinds);
    session_.wait_idle();
  }
  const std::vector<AllTimes> all = session_.all_gather(times);
  const std::vector<std::string> complaints = session_.all_gather(wrong_.complaint);
  const std::vector<Diagnosis> diagnoses = session_.all_gather(wrong_.diagnosis);

  std::vector<judge::Observation> copies;
  for (const Turn& turn : turns) {
    const auto accuse = [&](int from, int to) {
      const std::string& complaint = complaints[static_cast<std::size_t>(to)];
      if (!complaint.empty())
        found_(wrong_data(nodes_, from, to, "copies", complaint,
                          diagnoses[static_cast<std::size_t>(to)]));
    };
    accuse(turn.pair.first, turn.pair.second);
    accuse(turn.pair.second, turn.pair.first);
    for (std::size_t kind = 0; kind < kKinds; ++kind)
      if (kinds[kind])
        copies.push_back(observation_of(static_cast<Manner>(kind / ways),
                                        static_cast<Way>(kind % ways), turn.pair, all));
  }
  return copies;
}

std::vector<judge::Observation> PeerCopies::measure() {
  const std::vector<int> ranks = nodes_.ranks_per_node();
  std::vector<judge::Observation> copies;
  for (const auto& local_pairs : round_robin(*std::max_element(ranks.begin(), ranks.end()))) {
    const std::vector<Turn> turns = turns_of(local_pairs);
    if (words_ > 0)
      for (const Turn& turn : turns)
        if (const std::string problem = problem_of(turn.pair); !problem.empty())
          remarks_.push_back("copies between peers: " + problem);
    const auto measured = measure(turns, std::vector<bool>(kKinds, true));
    copies.insert(copies.end(), measured.begin(), measured.end());
  }
  return copies;
}

judge::Observation PeerCopies::measure_again(const judge::Observation& copy) {
  const int from = copy.of.ranks[0];
  const int to = copy.of.ranks[1];
  const RankPair pair{std::min(from, to), std::max(from, to)};
  const Way way = copy.metric.ends_with("/both_ways") ? both
                  : from == pair.first                ? forward
                                                      : backward;
  std::vector<bool> kinds(kKinds);
  for (int manner = 0; manner < manners; ++manner)
    kinds[static_cast<std::size_t>(manner * ways + way)] =
        copy.metric.find(name_of(static_cast<Manner>(manner))) != std::string::npos;
  return measure({{pair, 0}}, kinds).front();
}

}  // namespace shakedown::collectives
