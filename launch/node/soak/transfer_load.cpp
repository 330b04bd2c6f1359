#include "launch/node/soak/transfer_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/hash.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"

namespace shakedown::node {
namespace {

using number_format::mix;

/// Other words for each seed: what an earlier operation left is no right result.
Ramp ramp_of(std::uint64_t seed) { return {mix(seed), mix(seed + 1) | 1U}; }

std::uint64_t word_at(Device& device, ConstView x, std::uint64_t index, Stream& stream) {
  const ConstView one = x.slice(static_cast<std::size_t>(index), 1);
  return download<std::uint64_t>(device, stream, one.data, 1).front();
}

}  // namespace

const char* name_of(CopyWay way) {
  constexpr const char* kNames[] = {"host to device", "device to device", "device to host"};
  return kNames[static_cast<int>(way)];
}

CopyLoad::CopyLoad(Device& device, const LoadSettings& load, const CopySettings& settings)
    : device_(device),
      load_(load),
      settings_(settings),
      stream_(device.make_stream()),
      checker_(device, 1),
      sources_{Buffer(device, settings.bytes, Place::host),
               Buffer(device, settings.bytes, Place::host)},
      near_(device, settings.bytes),
      far_(device, settings.bytes),
      back_(device, settings.bytes, Place::host) {
  if (load.fault == FaultKind::copy) settings_.fault = CopyFault{};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    words_[i] = ramp_of(derive_seed(load.seed, i));
    write_on_host(sources_[i].view(DataType::uint64), words_[i]);
  }
}

LoadCount CopyLoad::run(double seconds, std::vector<Mismatch>& found) {
  device_.use_on_this_thread();
  const auto begin = std::chrono::steady_clock::now();
  LoadCount count;
  do {
    const std::size_t source = operations_++ % sources_.size();
    for (const Leg& leg : legs_of(static_cast<int>(source))) {
      const WordErrors wrong = copy_and_check(leg, words_[source]);
      ++count.checked;
      count.bytes += static_cast<double>(leg.to.bytes());
      bytes_[static_cast<std::size_t>(leg.way)] += static_cast<double>(leg.to.bytes());
      if (wrong.count == 0) continue;
      if (count.wrong++ == 0) found.push_back(describe(leg, words_[source], wrong));
      break;  // the next copy would only pass it on
    }
    count.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (count.seconds < seconds && !load_.stopped());
  return count;
}

std::array<CopyLoad::Leg, 3> CopyLoad::legs_of(int source) const {
  const View from = sources_[static_cast<std::size_t>(source)].view(DataType::uint64);
  const View near = near_.view(DataType::uint64);
  const View far = far_.view(DataType::uint64);
  const View back = back_.view(DataType::uint64);
  return {{{CopyWay::host_to_device, from, near},
           {CopyWay::device_to_device, near, far},
           {CopyWay::device_to_host, far, back}}};
}

WordErrors CopyLoad::copy_and_check(const Leg& leg, const Ramp& words) {
  copy(leg);
  if (leg.way != CopyWay::device_to_host) return checker_.check(leg.to, words, *stream_);
  stream_->synchronize();
  return check_on_host(leg.to, words);
}

void CopyLoad::copy(const Leg& leg) {
  std::optional<CopyFault>& fault = settings_.fault;
  const bool wrong = fault && fault->way == leg.way && fault->times != 0;
  if (wrong && fault->times > 0) --fault->times;
  if (wrong && fault->bit == CopyFault::kNothing) return;
  device_.copy(leg.to.data, leg.from.data, leg.to.bytes(), *stream_);
  if (wrong) flip_bit(device_, *stream_, leg.to, fault->word, fault->bit);
}

Mismatch CopyLoad::describe(const Leg& leg, const Ramp& words, const WordErrors& wrong) {
  Mismatch mismatch;
  mismatch.load = "copy";
  mismatch.operation = operations_ - 1;
  mismatch.index = wrong.first * 8;
  mismatch.where = fmt::format("{}, offset {:#x} of {}", name_of(leg.way), wrong.first * 8,
                               readable_bytes(static_cast<double>(leg.to.bytes())));
  mismatch.expected = words.word(wrong.first);
  mismatch.found = word_at(device_, leg.to, wrong.first, *stream_);
  mismatch.repeats = settings_.retrials;
  mismatch.reproduced = 0;
  for (int i = 0; i < settings_.retrials; ++i)
    if (copy_and_check(leg, words).count > 0) ++*mismatch.reproduced;
  mismatch.conclude(
      failure(Class::hardware,
              fmt::format("{} of {} words wrong; the same copy again is wrong in {} of {}",
                          wrong.count, leg.to.count, *mismatch.reproduced, settings_.retrials),
              leg.way == CopyWay::device_to_device ? "reset the GPU; RMA if it comes back"
                                                   : "compare with the node's other GPUs: wrong on "
                                                     "several is the host's memory, on this one "
                                                     "alone its slot or the GPU"));
  return mismatch;
}

namespace {

using Clock = std::chrono::steady_clock;

/// Words that a rank sends to each other one: whole chunks, and on all ranks about as many whatever
/// their number.
std::size_t share_for(BackendKind kind, std::uint64_t ranks) {
  constexpr std::size_t kChunk = ComputeKernels::kChunkBytes / sizeof(std::uint64_t);
  const std::size_t words = std::size_t{1} << (kind == BackendKind::gpu ? 24 : 15);
  return std::max<std::size_t>(words / ranks / kChunk, 1) * kChunk;
}

}  // namespace

CollectiveLoad::CollectiveLoad(const LoadSettings& settings, Backend& backend)
    : settings_(settings),
      backend_(backend),
      ranks_(static_cast<std::uint64_t>(backend.world->size())),
      rank_(static_cast<std::uint64_t>(backend.world->rank())),
      share_(share_for(backend.kind, ranks_)),
      stream_(backend.device->make_stream()),
      checker_(*backend.device, ranks_),
      send_(*backend.device, ranks_ * share_ * sizeof(std::uint64_t)),
      recv_(*backend.device, ranks_ * share_ * sizeof(std::uint64_t)),
      done_(backend.device->make_event()) {}

std::vector<CollectiveLoad::Operation> CollectiveLoad::operations(std::uint64_t seed, int root) {
  Communicator& world = *backend_.world;
  const Ramp of_rank_0 = ramp_of(seed);
  // Rank r has of_rank_0's words + r.
  const auto of_rank = [of_rank_0](std::uint64_t rank) {
    return Ramp{of_rank_0.first + rank, of_rank_0.step};
  };
  const Ramp sum{ranks_ * of_rank_0.first + ranks_ * (ranks_ - 1) / 2, ranks_ * of_rank_0.step};
  const auto piece_of = [this](View whole, std::uint64_t piece) {
    return whole.slice(piece * share_, share_);
  };
  const auto from_root = static_cast<std::uint64_t>(root);
  return {
      {"all_reduce", ranks_, false,
       [&world](View send, View recv, Stream& stream) {
         world.all_reduce(send, recv, Reduction::sum, stream);
       },
       [this, sum](std::uint64_t piece) { return sum.from(piece * share_); }},
      {"reduce_scatter", 1, false,
       [&world, piece_of](View send, View recv, Stream& stream) {
         world.reduce_scatter(send, piece_of(recv, 0), Reduction::sum, stream);
       },
       [this, sum](std::uint64_t) { return sum.from(rank_ * share_); }},
      {"all_gather", ranks_, true,
       [this, &world, piece_of](View send, View recv, Stream& stream) {
         world.all_gather(piece_of(send, rank_), recv, stream);
       },
       [this, of_rank](std::uint64_t piece) { return of_rank(piece).from(piece * share_); }},
      {"all_to_all", ranks_, true,
       [&world](View send, View recv, Stream& stream) { world.all_to_all(send, recv, stream); },
       [this, of_rank](std::uint64_t piece) { return of_rank(piece).from(rank_ * share_); }},
      {"broadcast", ranks_, false,
       [&world, root](View send, View recv, Stream& stream) {
         world.broadcast(send, recv, root, stream);
       },
       [this, of_rank, from_root](std::uint64_t piece) {
         return of_rank(from_root).from(piece * share_);
       }},
  };
}

WordErrors CollectiveLoad::perform(const Operation& operation, std::uint64_t seed) {
  const View send = send_.view(DataType::uint64);
  const View recv = recv_.view(DataType::uint64);
  Ramp mine = ramp_of(seed);
  mine.first += rank_;
  checker_.kernels().write(send, mine, *stream_);
  operation.start(send, recv, *stream_);
  done_->record(*stream_);
  backend_.world->wait(*done_, HostWait::polite);
  if (settings_.fault == FaultKind::collective)
    flip_bit(*backend_.device, *stream_, recv, share_ / 2, 17);
  return checker_.check(recv.slice(0, operation.pieces * share_), operation.pieces,
                        operation.expected, *stream_);
}

Mismatch CollectiveLoad::mismatch_of(const Operation& operation, const WordErrors& wrong) {
  const std::uint64_t piece = wrong.first / share_;
  Mismatch mismatch;
  mismatch.load = "collective";
  mismatch.operation = performed_;
  mismatch.index = wrong.first;
  mismatch.where = fmt::format("{} word {} and {} more of {}", operation.name, wrong.first,
                               wrong.count - 1, operation.pieces * share_);
  mismatch.expected = operation.expected(piece).word(wrong.first % share_);
  mismatch.found = word_at(*backend_.device, recv_.view(DataType::uint64), wrong.first, *stream_);
  mismatch.conclude(failure(
      Class::infrastructure,  // GPU, link or transport
      operation.from_each ? fmt::format("what {} delivered from rank {}", operation.name, piece)
                          : fmt::format("what {} delivered", operation.name),
      "launch/variants shows with which transports it occurs, bin/link_matrix on which links"));
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
