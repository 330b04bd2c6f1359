#include "launch/node/soak/transfer_load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "common/hash.hpp"
#include "launch/node/soak/injected_faults.hpp"

namespace shakedown::node {
namespace {

void fill_on_host(const Buffer& buffer, const KnownWords& words) {
  const View view = buffer.view(DataType::uint64);
  auto* const to = static_cast<std::uint64_t*>(view.data);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < view.count; ++i) to[i] = words.word(i);
}

WordErrors check_on_host(ConstView found, const KnownWords& words) {
  const auto* const from = static_cast<const std::uint64_t*>(found.data);
  unsigned long long count = 0;
  unsigned long long first = WordErrors().first;
#pragma omp parallel for schedule(static) reduction(+ : count) reduction(min : first)
  for (std::size_t i = 0; i < found.count; ++i) {
    if (from[i] == words.word(i)) continue;
    ++count;
    first = std::min<unsigned long long>(first, i);
  }
  return {count, first};
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
      checker_(device),
      sources_{Buffer(device, settings.bytes, Place::host),
               Buffer(device, settings.bytes, Place::host)},
      near_(device, settings.bytes),
      far_(device, settings.bytes),
      back_(device, settings.bytes, Place::host) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    words_[i].seed = derive_seed(load.seed, i);
    fill_on_host(sources_[i], words_[i]);
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

WordErrors CopyLoad::copy_and_check(const Leg& leg, const KnownWords& words) {
  copy(leg.way, leg.to, leg.from, checker_.stream());
  if (leg.way == CopyWay::device_to_host) {
    checker_.stream().synchronize();
    return check_on_host(leg.to, words);
  }
  checker_.begin_check();
  checker_.check(leg.to, words, 0);
  return checker_.end_check();
}

void CopyLoad::copy(CopyWay, View to, ConstView from, Stream& stream) {
  device_.copy(to.data, from.data, to.bytes(), stream);
}

Mismatch CopyLoad::describe(const Leg& leg, const KnownWords& words, const WordErrors& wrong) {
  Mismatch mismatch;
  mismatch.load = name_;
  mismatch.operation = operations_ - 1;
  mismatch.index = wrong.first * 8;
  mismatch.where = fmt::format("{}, offset {:#x} of {}", name_of(leg.way), wrong.first * 8,
                               readable_bytes(static_cast<double>(leg.to.bytes())));
  mismatch.expected = words.word(wrong.first);
  mismatch.found = checker_.word(leg.to, wrong.first);
  mismatch.repeats = settings_.retrials;
  mismatch.reproduced = 0;
  for (int i = 0; i < settings_.retrials; ++i)
    if (copy_and_check(leg, words).count > 0) ++*mismatch.reproduced;
  mismatch.cause = fmt::format("{} of {} words wrong; the same copy again is wrong in {} of {}",
                               wrong.count, leg.to.count, *mismatch.reproduced, settings_.retrials);
  mismatch.action = leg.way == CopyWay::device_to_device
                        ? "reset the GPU; RMA if it comes back"
                        : "compare with the node's other GPUs: wrong on several is the host's "
                          "memory, on this one alone its slot or the GPU";
  return mismatch;
}

std::string CopyLoad::summary() const {
  std::string text;
  for (const CopyWay way :
       {CopyWay::host_to_device, CopyWay::device_to_device, CopyWay::device_to_host})
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(way),
                        readable_bytes(bytes_[static_cast<std::size_t>(way)]));
  return text;
}

std::unique_ptr<CopyLoad> make_copy_load(Device& device, const LoadSettings& load,
                                         const CopySettings& settings) {
  if (load.fault) return inject(CopyFault{}, device, load, settings);
  return std::make_unique<CopyLoad>(device, load, settings);
}

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
