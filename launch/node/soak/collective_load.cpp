#include "launch/node/soak/collective_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/random.hpp"

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the whole buffer, on each rank.
std::size_t words_for(BackendKind kind) {
  return std::size_t{1} << (kind == BackendKind::gpu ? 24 : 15);
}

}  // namespace

CollectiveLoad::CollectiveLoad(const LoadSettings& settings, Backend& backend)
    : settings_(settings),
      backend_(backend),
      ranks_(static_cast<std::uint64_t>(backend.world->size())),
      rank_(static_cast<std::uint64_t>(backend.world->rank())),
      share_(std::max<std::size_t>(words_for(backend.kind) / ranks_, 1)),
      checker_(*backend.device),
      send_(*backend.device, ranks_ * share_ * sizeof(std::uint64_t)),
      recv_(*backend.device, ranks_ * share_ * sizeof(std::uint64_t)),
      done_(backend.device->make_event()) {}

std::vector<CollectiveLoad::Operation> CollectiveLoad::operations(std::uint64_t seed, int root) {
  Communicator& world = *backend_.world;
  // Rank r holds mix(seed, i) + r.
  const auto all = [this, seed](std::uint64_t first) {
    return KnownWords{seed, ranks_, ranks_ * (ranks_ - 1) / 2, first};
  };
  const auto piece_of = [this](View whole, std::uint64_t piece) {
    return whole.slice(piece * share_, share_);
  };
  const auto from_root = static_cast<std::uint64_t>(root);
  return {
      {"all_reduce", ranks_, false,
       [&world](View send, View recv, Stream& stream) {
         world.all_reduce(send, recv, Reduction::sum, stream);
       },
       [this, all](std::uint64_t piece) { return all(piece * share_); }},
      {"reduce_scatter", 1, false,
       [&world, piece_of](View send, View recv, Stream& stream) {
         world.reduce_scatter(send, piece_of(recv, 0), Reduction::sum, stream);
       },
       [this, all](std::uint64_t) { return all(rank_ * share_); }},
      {"all_gather", ranks_, true,
       [this, &world, piece_of](View send, View recv, Stream& stream) {
         world.all_gather(piece_of(send, rank_), recv, stream);
       },
       [this, seed](std::uint64_t piece) {
         return KnownWords{seed, 1, piece, piece * share_};
       }},
      {"all_to_all", ranks_, true,
       [&world](View send, View recv, Stream& stream) { world.all_to_all(send, recv, stream); },
       [this, seed](std::uint64_t piece) {
         return KnownWords{seed, 1, piece, rank_ * share_};
       }},
      {"broadcast", ranks_, false,
       [&world, root](View send, View recv, Stream& stream) {
         world.broadcast(send, recv, root, stream);
       },
       [this, seed, from_root](std::uint64_t piece) {
         return KnownWords{seed, 1, from_root, piece * share_};
       }},
  };
}

WordErrors CollectiveLoad::perform(const Operation& operation, std::uint64_t seed) {
  const View send = send_.view(DataType::uint64);
  const View recv = recv_.view(DataType::uint64);
  Stream& stream = checker_.stream();
  // The seed differs from the last one's: what an earlier operation left is no right result.
  checker_.fill(send, {seed, 1, rank_, 0});
  operation.start(send, recv, stream);
  done_->record(stream);
  backend_.world->wait(*done_, HostWait::polite);
  if (settings_.fault) checker_.flip_bit(recv, share_ / 2);
  checker_.begin_check();
  for (std::uint64_t piece = 0; piece < operation.pieces; ++piece)
    checker_.check(recv.slice(piece * share_, share_), operation.expected(piece), piece * share_);
  return checker_.end_check();
}

Mismatch CollectiveLoad::mismatch_of(const Operation& operation, const WordErrors& wrong) {
  const std::uint64_t piece = wrong.first / share_;
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = performed_;
  mismatch.index = wrong.first;
  mismatch.where = fmt::format("{} word {} and {} more of {}", operation.name, wrong.first,
                               wrong.count - 1, operation.pieces * share_);
  mismatch.expected = operation.expected(piece).word(wrong.first % share_);
  mismatch.found = checker_.word(recv_.view(DataType::uint64), wrong.first);
  mismatch.cause = operation.from_each
                       ? fmt::format("what {} delivered from rank {}", operation.name, piece)
                       : fmt::format("what {} delivered", operation.name);
  mismatch.class_ = Class::infrastructure;  // GPU, link or transport
  mismatch.action =
      "launch/variants shows with which transports it occurs, bin/link_matrix on which links";
  return mismatch;
}

LoadCount CollectiveLoad::run(double seconds, std::vector<Mismatch>& found) {
  LoadCount count;
  const auto start = Clock::now();
  const double received = backend_.world->traffic().received_bytes;
  bool any_done = false;
  while (!any_done) {
    const int root = static_cast<int>(performed_ % ranks_);
    for (std::size_t kind = 0; kind < operations(0, root).size(); ++kind) {
      const std::uint64_t seed = derive_seed(settings_.seed, performed_);
      const Operation operation = operations(seed, root)[kind];
      const WordErrors wrong = perform(operation, seed);
      if (wrong.count > 0 && count.wrong++ == 0) found.push_back(mismatch_of(operation, wrong));
      ++count.checked;
      ++performed_;
    }
    count.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const bool done = count.seconds >= seconds || settings_.stopped();
    const auto dones = backend_.session->all_gather(done ? 1.0 : 0.0);
    any_done = std::count(dones.begin(), dones.end(), 1.0) > 0;
  }
  count.bytes = backend_.world->traffic().received_bytes - received;
  return count;
}

}  // namespace shakedown::node
