#include "training/measure/neighbour_check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/ballot.hpp"
#include "common/hash.hpp"
#include "common/kernels.hpp"
#include "common/mpi_session.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

void copy(Device& device, Stream& stream, const Buffer& to, View from) {
  device.copy(to.data(), from.data, from.bytes(), stream);
}

void copy(Device& device, Stream& stream, View to, const Buffer& from) {
  device.copy(to.data, from.data(), to.bytes(), stream);
}

/// Equal devices compute equal bits.
void check_devices(const Engine& engine, const MpiSession& session) {
  const DeviceIdentity mine = engine.device().identity();
  const auto devices = session.all_gather(
      fmt::format("{}, {} {}", mine.model, mine.compute_threads,
                  engine.device().kind() == BackendKind::gpu ? "multiprocessors" : "threads"));
  for (std::size_t r = 1; r < devices.size(); ++r)
    if (devices[r] != devices[0])
      throw UsageError(fmt::format(
          "--check-neighbour needs the same device on every rank: rank 0 has {}, rank {} has {}",
          devices[0], r, devices[r]));
}

}  // namespace

NeighbourCheck::NeighbourCheck(Engine& engine, const std::optional<Fault>& fault)
    : engine_(engine),
      fault_(fault && fault->rank == engine.world().rank() ? fault : std::nullopt),
      statistics_(engine.device(), engine.model.network().weights().statistics().bytes()),
      metrics_(engine.device(), engine.model.network().metrics().bytes()),
      hashes_(engine.device(), parameters() * sizeof(std::uint64_t)) {
  const Plan& plan = engine.step.plan();
  if (!engine.settings().network.tuning.deterministic)
    throw UsageError(
        "--check-neighbour needs --deterministic: else equal GPUs differ in last bits");
  if (engine.settings().network.tuning.requests(Fusion::stem))
    throw UsageError(
        "--check-neighbour: --fusion stem sums a norm's statistics from each rank's own running "
        "mean, so equal GPUs differ in last bits; --fusion none, gradients and gram can be "
        "checked");
  if (engine.step.ranks_computing() < 2)
    throw UsageError(
        fmt::format("--check-neighbour needs at least 2 ranks that compute, not {}: a GPU that is "
                    "compared with itself repeats its error",
                    engine.step.ranks_computing()));
  if (!plan.ranks_agree)
    throw UsageError(
        fmt::format("--check-neighbour: --strategy {} has other weights on each rank, so gradients "
                    "cannot be compared",
                    plan.strategy));
  if (!engine.model.network().weights().computes_with_all())
    throw UsageError(
        fmt::format("--check-neighbour: --strategy {} has no rank with all weights, and an extra "
                    "pass would gather them again; zero2 can be checked",
                    plan.strategy));
  check_devices(engine, *engine.backend.session);
  if (!engine.step.computes()) return;
  const auto batch = engine.model.network().batch();
  for (std::size_t i = 0; i < batch.size(); ++i)
    batch_[i] = Buffer(engine.device(), batch[i].bytes());
}

std::vector<Dispute> NeighbourCheck::disputes() {
  const auto vote = [&](int shift) { return of_all(compute(shift, Look::first).device); };
  keep();
  Votes votes{vote(0), vote(1)};
  std::vector<Dispute> found;
  if (differ(votes)) {
    if (engine_.step.ranks_computing() > 2) votes.push_back(vote(2));
    Votes again;
    Votes by_host;
    for (int shift = 0; shift < static_cast<int>(votes.size()); ++shift) {
      const Computed second = compute(shift, Look::second);
      again.push_back(of_all(second.device));
      by_host.push_back(of_all(second.host));
    }
    found = disputes_of(votes, again, by_host);
  }
  restore();
  return found;
}

Names NeighbourCheck::names() const {
  Names names;
  const auto uuids = engine_.backend.session->all_gather(
      engine_.device().kind() == BackendKind::gpu ? engine_.device().identity().uuid : "");
  for (int r = engine_.step.first_computing(); r < engine_.world().size(); ++r) {
    names.ranks.push_back(r);
    names.gpus.push_back(uuids[static_cast<std::size_t>(r)]);
  }
  for (const Parameter& p : engine_.model.network().table().parameters())
    names.parameters.push_back(p.name);
  return names;
}

void NeighbourCheck::keep() {
  if (!engine_.step.computes()) return;
  Network& network = engine_.model.network();
  const auto batch = network.batch();
  for (std::size_t i = 0; i < batch.size(); ++i)
    copy(engine_.device(), engine_.stream(), batch_[i], batch[i]);
  copy(engine_.device(), engine_.stream(), statistics_, network.weights().statistics());
  copy(engine_.device(), engine_.stream(), metrics_, network.metrics());
}

void NeighbourCheck::restore() {
  if (!engine_.step.computes()) return;
  Network& network = engine_.model.network();
  fetch_batch(0);
  copy(engine_.device(), engine_.stream(), network.weights().statistics(), statistics_);
  copy(engine_.device(), engine_.stream(), network.metrics(), metrics_);
  engine_.finish();
}

/// Enqueues: the network has the batch of the rank `shift` further on.
void NeighbourCheck::fetch_batch(int shift) {
  const auto batch = engine_.model.network().batch();
  Stream& stream = engine_.stream();
  if (shift == 0) {
    for (std::size_t i = 0; i < batch.size(); ++i)
      copy(engine_.device(), stream, batch[i], batch_[i]);
    return;
  }
  Communicator& world = engine_.world();
  const int first = engine_.step.first_computing();
  const int ranks = engine_.step.ranks_computing();
  const int mine = world.rank() - first;
  world.group([&] {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      world.send(batch_[i].view(batch[i].type), first + (mine + ranks - shift) % ranks, stream);
      world.recv(batch[i], first + (mine + shift) % ranks, stream);
    }
  });
}

NeighbourCheck::Computed NeighbourCheck::compute(int shift, Look look) {
  Computed result{Hashes(parameters()), Hashes(parameters())};
  if (!engine_.step.computes()) return result;
  Device& device = engine_.device();
  Stream& stream = engine_.stream();
  fetch_batch(shift);
  device.zero(hashes_.data(), hashes_.bytes(), stream);
  engine_.step.compute_gradients([&](int block) {
    const Network& network = engine_.model.network();
    if (errs(FaultKind::product)) {
      engine_.finish();
      flip_bit(device, network.weights().gradients(network.block_range(block)), 0, 3);
    }
    hash(block);
    if (look == Look::second) hash_on_host(block, result.host);
  });
  engine_.finish();
  result.device = download<std::uint64_t>(device, stream, hashes_.data(), result.device.size());
  if (errs(FaultKind::hash)) result.device.front() ^= 8;
  return result;
}

template <class Body>
void NeighbourCheck::for_gradients(int block, Body&& body) const {
  const Network& network = engine_.model.network();
  const auto& table = network.table().parameters();
  for (std::size_t p = 0; p < table.size(); ++p)
    if (table[p].block == block)
      body(p, network.weights().gradients({table[p].offset, table[p].offset + table[p].stored}));
}

void NeighbourCheck::hash(int block) {
  auto* const hashes = static_cast<std::uint64_t*>(hashes_.data());
  for_gradients(block, [&](std::size_t p, View gradient) {
    engine_.device().kernels().add_bit_hash(gradient, hashes + p, engine_.stream());
  });
}

void NeighbourCheck::hash_on_host(int block, Hashes& hashes) {
  engine_.finish();
  for_gradients(block, [&](std::size_t p, View gradient) {
    const auto copied =
        download<std::byte>(engine_.device(), engine_.stream(), gradient.data, gradient.bytes());
    hashes[p] = bit_hash({copied.data(), gradient.count, gradient.type, Place::host});
  });
}

/// Those of the ranks that compute.
std::vector<Hashes> NeighbourCheck::of_all(const Hashes& mine) const {
  const std::size_t count = mine.size();
  Hashes all(count * static_cast<std::size_t>(engine_.world().size()));
  engine_.host().all_gather(ConstView(std::span(mine)), View(std::span(all)), engine_.stream());
  std::vector<Hashes> by_rank;
  for (auto at =
           all.begin() + static_cast<std::ptrdiff_t>(
                             count * static_cast<std::size_t>(engine_.step.first_computing()));
       at != all.end(); at += static_cast<std::ptrdiff_t>(count))
    by_rank.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
  return by_rank;
}

std::size_t kept_batch_bytes(const NetworkSettings& shape, BackendKind kind) {
  const auto batch = static_cast<std::size_t>(shape.batch_size);
  const auto side = static_cast<std::size_t>(shape.image_size);
  const std::size_t pixel =
      static_cast<std::size_t>(stem_channels(kind)) * size_of(compute_type(shape.precision));
  return batch * (side * side * pixel + sizeof(std::int32_t));  // images and labels
}

namespace {

/// The votes on a batch, of its own rank first.
struct Poll {
  std::vector<int> voters;
  std::vector<Hashes> votes;

  Poll(const Votes& all, int batch) {
    const int ranks = static_cast<int>(all.front().size());
    for (int shift = 0; shift < static_cast<int>(all.size()); ++shift) {
      voters.push_back((batch + ranks - shift) % ranks);
      votes.push_back(
          all[static_cast<std::size_t>(shift)][static_cast<std::size_t>(voters.back())]);
    }
  }
  Ballot count() const {
    std::vector<const Hashes*> of_voters;
    for (const Hashes& vote : votes) of_voters.push_back(&vote);
    return count_votes(of_voters);
  }
};

std::vector<std::size_t> differing(const std::vector<Hashes>& votes) {
  std::vector<std::size_t> parameters;
  for (std::size_t p = 0; p < votes.front().size(); ++p)
    if (std::any_of(votes.begin(), votes.end(),
                    [&](const Hashes& vote) { return vote[p] != votes.front()[p]; }))
      parameters.push_back(p);
  return parameters;
}

/// A voter whose device hashed its gradients otherwise than the host: wrong without a vote.
std::optional<std::size_t> wrong_hash(const Poll& again, const Poll& by_host) {
  for (std::size_t v = 0; v < again.votes.size(); ++v)
    if (again.votes[v] != by_host.votes[v]) return v;
  return std::nullopt;
}

/// By Second.
constexpr struct {
  const char* name;
  const char* text;
} kSeconds[] = {{"right", "a second computation was right: the error is transient"},
                {"other_bits", "a second computation gave other wrong bits"},
                {"same_bits", "a second computation gave the same wrong bits"},
                {"hash", "the device's hash of the gradients is not that of the host's copy"}};

/// The disputes in which the same rank is wrong, or of which none is decided.
struct Accusation {
  std::set<int> batches;  // of these ranks
  std::set<int> voters;
  std::size_t votes = 0;  // per batch
  std::set<std::size_t> parameters;
  Second second = Second::right;

  void add(const Dispute& dispute, const Names& names) {
    batches.insert(names.ranks[static_cast<std::size_t>(dispute.batch)]);
    for (int voter : dispute.voters) voters.insert(names.ranks[static_cast<std::size_t>(voter)]);
    votes = dispute.voters.size();
    parameters.insert(dispute.parameters.begin(), dispute.parameters.end());
    second = std::max(second, dispute.second);
  }
  /// Backward computes the last parameter's first.
  std::string where(const Names& names) const {
    return fmt::format("from the batch{} of {}, in {} of {} tensors, {} the first",
                       batches.size() > 1 ? "es" : "", text_of(batches), parameters.size(),
                       names.parameters.size(), names.parameters[*parameters.rbegin()]);
  }
  static std::string text_of(const std::set<int>& ranks) {
    return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "));
  }
};

Verdict against(std::size_t wrong, const Accusation& accusation, const Names& names) {
  const int rank = names.ranks[wrong];
  const std::string& gpu = names.gpus[wrong];
  std::set<int> others = accusation.voters;
  others.erase(rank);
  return {gpu.empty() ? Scope::rank : Scope::gpu,
          gpu.empty() ? fmt::format("{}", rank) : gpu,
          Outcome::fail,
          fmt::format("rank {} computed other gradients than {} {}; {}", rank,
                      Accusation::text_of(others), accusation.where(names),
                      kSeconds[static_cast<int>(accusation.second)].text),
          Class::hardware,
          "take it out of service; bin/soak on it shows whether it errs again: then RMA"};
}

Verdict undecided(const Accusation& accusation, const Names& names) {
  const std::string ranks = Accusation::text_of(accusation.voters);
  if (accusation.votes < 3)
    return {Scope::job,
            "gradients",
            Outcome::fail,
            fmt::format("{} computed different gradients {}; of two, which one is wrong is not "
                        "known",
                        ranks, accusation.where(names)),
            std::nullopt,
            "run again on 3 ranks or more, or bin/soak on both"};
  return {Scope::job,
          "gradients",
          Outcome::inconclusive,
          fmt::format("{} computed three different gradients {}", ranks, accusation.where(names)),
          Class::software,
          "bin/soak on them; where they pass, the step is not deterministic"};
}

}  // namespace

const char* name_of(Second second) { return kSeconds[static_cast<int>(second)].name; }

std::size_t Dispute::accused() const {
  if (!wrong) return 1;
  return static_cast<std::size_t>(std::find(voters.begin(), voters.end(), *wrong) - voters.begin());
}

bool differ(const Votes& votes) {
  for (std::size_t batch = 0; batch < votes.front().size(); ++batch)
    if (!Poll(votes, static_cast<int>(batch)).count().unanimous) return true;
  return false;
}

std::vector<Dispute> disputes_of(const Votes& votes, const Votes& again, const Votes& by_host) {
  std::vector<Dispute> disputes;
  for (int batch = 0; batch < static_cast<int>(votes.front().size()); ++batch) {
    const Poll poll(votes, batch);
    const Ballot ballot = poll.count();
    if (ballot.unanimous) continue;
    const Poll second(again, batch);
    Dispute dispute{batch,        poll.voters,   poll.votes,
                    std::nullopt, Second::right, differing(poll.votes)};
    const auto liar = wrong_hash(second, Poll(by_host, batch));
    if (liar || ballot.majority) {  // of two or three that differ, one is outvoted
      const std::size_t voter = liar ? *liar : ballot.outvoted.front();
      const std::size_t other = (voter + 1) % poll.votes.size();
      dispute.wrong = poll.voters[voter];
      if (liar)
        dispute.second = Second::hash;
      else if (second.votes[voter] == poll.votes[voter])
        dispute.second = Second::same_bits;
      else if (second.votes[voter] != poll.votes[other])
        dispute.second = Second::other_bits;
    }
    disputes.push_back(std::move(dispute));
  }
  return disputes;
}

std::vector<Verdict> verdicts_of(const std::vector<Dispute>& disputes, const Names& names) {
  std::map<std::optional<int>, Accusation> by_rank;
  for (const Dispute& dispute : disputes) by_rank[dispute.wrong].add(dispute, names);
  std::vector<Verdict> verdicts;
  for (const auto& [wrong, accusation] : by_rank)
    verdicts.push_back(wrong ? against(static_cast<std::size_t>(*wrong), accusation, names)
                             : undecided(accusation, names));
  return verdicts;
}

}  // namespace shakedown::training
