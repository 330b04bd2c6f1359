#include "training/measure/neighbour_check.hpp"

#include <fmt/format.h>

#include "common/bit_hash.hpp"
#include "common/error.hpp"
#include "common/kernels.hpp"
#include "common/mpi_session.hpp"

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

NeighbourCheck::NeighbourCheck(Engine& engine)
    : engine_(engine),
      statistics_(engine.device(), engine.model.network().weights().statistics().bytes()),
      metrics_(engine.device(), engine.model.network().metrics().bytes()),
      hashes_(engine.device(), parameters() * sizeof(std::uint64_t)) {
  const StrategyEntry& strategy = engine.step.strategy_entry();
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
  if (!strategy.ranks_agree)
    throw UsageError(
        fmt::format("--check-neighbour: --strategy {} has other weights on each rank, so gradients "
                    "cannot be compared",
                    strategy.name));
  if (!engine.model.network().weights().computes_with_all())
    throw UsageError(
        fmt::format("--check-neighbour: --strategy {} has no rank with all weights, and an extra "
                    "pass would gather them again; zero2 can be checked",
                    strategy.name));
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

Jury NeighbourCheck::jury() const {
  Jury jury;
  const auto uuids = engine_.backend.session->all_gather(
      engine_.device().kind() == BackendKind::gpu ? engine_.device().identity().uuid : "");
  for (int r = engine_.step.first_computing(); r < engine_.world().size(); ++r) {
    jury.ranks.push_back(r);
    jury.gpus.push_back(uuids[static_cast<std::size_t>(r)]);
  }
  for (const Parameter& p : engine_.model.network().table().parameters())
    jury.parameters.push_back(p.name);
  return jury;
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
    computed(network.weights().gradients(network.block_range(block)));
    hash(block);
    if (look == Look::second) hash_on_host(block, result.host);
  });
  engine_.finish();
  result.device = download<std::uint64_t>(device, stream, hashes_.data(), result.device.size());
  hashed(result.device);
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

}  // namespace shakedown::training
