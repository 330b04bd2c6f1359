#include "collectives/perf/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string_view>

#include "common/error.hpp"
#include "common/host.hpp"
#include "common/statistics.hpp"
#include "common/text_table.hpp"

namespace shakedown::collectives {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlignment = 4096;
constexpr std::size_t kMostHost = std::size_t{1} << 30;  // bytes of host memory, slow to pin

constexpr std::uint64_t kMostRegions = 64;  // decoded of one measurement on each rank
constexpr std::uint64_t kRegionsAtOnce = 16;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

bool on_device(const Communicator& communicator, const Backend& backend) {
  return backend.kind == BackendKind::gpu && std::string(communicator.transport()) == "nccl";
}

std::size_t slot_bytes(const Trial& trial) {
  const std::size_t size = size_of(trial.type);
  if (trial.in_place) return aligned(trial.bytes());
  return aligned(trial.counts.send * size) + aligned(trial.counts.recv * size);
}

std::string describe(const Trial& trial) {
  return fmt::format("{} of {} {}, {}", trial.operation->name,
                     readable_bytes(static_cast<double>(trial.bytes())), name_of(trial.type),
                     trial.in_place ? "in place" : "out of place");
}

/// Runs body; an error of what could not be measured names the operation, if the transport has not.
template <class Body>
void naming(const Trial& trial, Body&& body) {
  const auto named = [&](const Error& error) {
    const std::string_view text = error.what();
    if (text.starts_with(trial.operation->name)) return std::string(text);
    return fmt::format("{}: {}", describe(trial), text);
  };
  try {
    body();
  } catch (const TimeoutError& error) {
    throw TimeoutError(named(error));
  } catch (const InconclusiveError& error) {
    throw InconclusiveError(named(error));
  }
}

}  // namespace

CollectiveBench::CollectiveBench(Communicator& communicator, Backend& backend,
                                 const MpiSession& session, const BenchSettings& settings,
                                 std::size_t largest_bytes)
    : communicator_(communicator),
      backend_(backend),
      session_(session),
      settings_(settings),
      verifier_(make_verifier(backend.kind)),
      stream_(backend.device->make_stream()) {
  const auto group = static_cast<std::size_t>(settings.aggregate);
  const std::size_t operations = static_cast<std::size_t>(settings.iterations) * group;
  const std::size_t slot = 2 * aligned(std::max<std::size_t>(largest_bytes, 1));
  const std::size_t most = on_device(communicator, backend)
                               ? settings.ring_bytes
                               : std::min(settings.ring_bytes, kMostHost);
  const std::size_t possible =
      2 * group * largest_possible(communicator, backend, session, settings.aggregate);
  arena_bytes_ = std::max(group * slot, std::min({(operations + 1) * slot, most, possible}));
  arena_ = communicator.allocate(arena_bytes_, settings.registration);
  mismatches_ = Buffer(*backend.device, operations * sizeof(Mismatches));
  if (settings.one_by_one)
    for (std::size_t i = 0; i < 2 * operations; ++i) marks_.push_back(backend.device->make_event());
}

std::size_t CollectiveBench::largest_possible(const Communicator& communicator,
                                              const Backend& backend, const MpiSession& session,
                                              int aggregate) {
  const bool device = on_device(communicator, backend);
  const double free =
      device ? 0.9 * static_cast<double>(backend.device->memory().free_bytes)
             : 0.5 * static_cast<double>(host_memory().free_bytes) / session.local_size();
  const auto all = session.all_gather(free);
  const auto bytes =
      static_cast<std::size_t>(*std::min_element(all.begin(), all.end()) / (2 * aggregate));
  return bytes / kAlignment * kAlignment;
}

double CollectiveBench::over_ranks(const std::vector<double>& all) const {
  switch (settings_.average) {
    case Average::rank0: return all[0];
    case Average::min: return *std::min_element(all.begin(), all.end());
    case Average::max: return *std::max_element(all.begin(), all.end());
    case Average::mean: break;
  }
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

/// By the stream, as nccl-tests: an event after the last operation would be timed, too.
void CollectiveBench::complete() { communicator_.wait(*stream_, HostWait::timed); }

CollectiveBench::Slot CollectiveBench::make_slot(const Trial& trial, std::size_t index) const {
  auto* at = static_cast<std::byte*>(arena_->data()) + index * slot_bytes(trial);
  const Counts counts = trial.counts;
  const Place place = arena_->place();
  Slot slot;
  View send(at, counts.send, trial.type, place);
  View recv(at, counts.recv, trial.type, place);
  if (!trial.in_place) {
    recv.data = at + aligned(send.bytes());
  } else if (counts.send != counts.recv) {
    const View whole(at, counts.larger(), trial.type, place);
    const auto rank = static_cast<std::size_t>(communicator_.rank());
    View& part = counts.send < counts.recv ? send : recv;
    part = whole.slice(rank * part.count, part.count);
  }
  slot.call = {send, recv, trial.reduction, trial.root, trial.counts};
  slot.operands = operands::make_operands(trial.type, trial.operation->reduces, trial.reduction,
                                          communicator_.size());
  return slot;
}

// As in nccl-tests: over all sizes first.
void CollectiveBench::warm_up(const std::vector<Trial>& trials) {
  const Trial* last = nullptr;
  for (const Trial& trial : trials) {
    const bool alike = last != nullptr && last->type == trial.type &&
                       last->reduction == trial.reduction && last->root == trial.root;
    if (alike && trial.bytes() < 2 * last->bytes()) continue;
    last = &trial;
    spare_ = make_slot(trial, 0);
    naming(trial, [&] { run_untimed(trial, settings_.warmup); });
  }
}

/// In a slot of its own where memory suffices; else before that slot is filled, so that no result
/// that is checked was there before the clock started.
void CollectiveBench::run_untimed(const Trial& trial, int times) {
  for (int i = 0; i < times; ++i) trial.operation->run(communicator_, spare_.call, *stream_);
  complete();
}

/// Inputs differ by operation, and receive buffers hold none of an earlier operation's results.
void CollectiveBench::prepare(const Trial& trial, std::size_t slots) {
  const int rank = communicator_.rank();
  for (std::size_t i = 0; i < slots; ++i) {
    Slot& slot = ring_[i];
    const View send(const_cast<void*>(slot.call.send.data), slot.call.send.count, trial.type,
                    arena_->place());
    slot.operands = operands::at_iteration(slot.operands, ++sequence_);
    verifier_->poison(slot.call.recv, *stream_);
    verifier_->fill(send, slot.operands, rank, 0, *stream_);
  }
  complete();
}

void CollectiveBench::enqueue_iteration(const Trial& trial, std::size_t begin, std::size_t end) {
  if (settings_.one_by_one) marks_[2 * begin]->record(*stream_);
  if (end - begin == 1)
    trial.operation->run(communicator_, ring_[begin].call, *stream_);
  else
    communicator_.group([&] {
      for (std::size_t i = begin; i < end; ++i)
        trial.operation->run(communicator_, ring_[i].call, *stream_);
    });
  if (settings_.one_by_one) marks_[2 * begin + 1]->record(*stream_);
}

void CollectiveBench::enqueue(const Trial& trial, std::size_t slots) {
  const auto group = static_cast<std::size_t>(settings_.aggregate);
  for (std::size_t i = 0; i < slots; i += group) {
    enqueue_iteration(trial, i, std::min(i + group, slots));
    if (settings_.blocking == Blocking::no) continue;
    complete();
    const auto waiting = Clock::now();
    if (settings_.blocking != Blocking::wait) session_.barrier();
    if (settings_.blocking == Blocking::untimed_barrier) waited_us_ += microseconds_since(waiting);
  }
}

CollectiveBench::Times CollectiveBench::run(const Trial& trial, std::size_t slots) {
  std::unique_ptr<Graph> graph;
  if (settings_.graph)
    graph = communicator_.capture(*backend_.device, *stream_, [&] { enqueue(trial, slots); });
  waited_us_ = 0;
  Times times;
  if (spare_is_own_)
    run_untimed(trial, 1);  // the kernel is loaded and peers are awake, as before nccl-tests' clock
  session_.barrier();
  const auto start = Clock::now();
  if (graph)
    graph->launch(*stream_);
  else
    enqueue(trial, slots);
  times.enqueue_us = microseconds_since(start) - waited_us_;
  complete();
  times.total_us = microseconds_since(start) - waited_us_;
  if (settings_.one_by_one)
    for (std::size_t i = 0; i < slots; i += static_cast<std::size_t>(settings_.aggregate))
      my_iterations_us_.push_back(marks_[2 * i + 1]->milliseconds_since(*marks_[2 * i]) * 1e3 /
                                  settings_.aggregate);
  return times;
}

Received CollectiveBench::received(const Trial& trial, const Slot& slot) const {
  const Seat seat{communicator_.rank(), communicator_.size(), trial.root};
  return {slot.call.recv,    slot.call.send,
          slot.operands,     trial.operation->expected(trial.counts, seat),
          seat.rank,         trial.counts.send,
          trial.counts.call, operands::Earlier{}};
}

void CollectiveBench::check(const Trial& trial, std::size_t slots, Measurement& result) {
  const std::vector<Mismatches> fresh(slots);
  upload<Mismatches>(*backend_.device, *stream_, mismatches_.data(), fresh);
  const Seat seat{communicator_.rank(), communicator_.size(), trial.root};
  const auto ranges = trial.operation->expected(trial.counts, seat);
  auto* found = static_cast<Mismatches*>(mismatches_.data());
  for (std::size_t i = 0; i < slots; ++i)
    for (const SourceRange& s : ranges)
      verifier_->check(ring_[i].call.recv.slice(s.begin, s.count), ring_[i].operands, s.source,
                       s.position, s.begin, found + i, *stream_);
  const auto mismatches =
      download<Mismatches>(*backend_.device, *stream_, mismatches_.data(), slots);

  struct Wrong {
    std::uint64_t elements = 0;
    WrongElement first;
  } mine;
  Diagnosis diagnosis;
  const auto wrong_slots = static_cast<std::uint64_t>(
      std::ranges::count_if(mismatches, [](const Mismatches& slot) { return slot.wrong > 0; }));
  for (std::size_t i = 0; i < slots; ++i) {
    if (mismatches[i].wrong == 0) continue;
    const Received slot = received(trial, ring_[i]);
    if (mine.elements == 0) mine.first = describe_wrong(slot, ring_[i], mismatches[i].first);
    mine.elements += mismatches[i].wrong;
    const std::uint64_t regions =
        std::min(regions_left_, std::max<std::uint64_t>(1, kRegionsAtOnce / wrong_slots));
    diagnosis.add(
        diagnose(slot, mismatches[i], static_cast<int>(regions), *backend_.device, *stream_));
    regions_left_ -= regions;
  }
  result.iterations_checked += static_cast<long>(slots) / settings_.aggregate;
  std::uint64_t wrong = 0;
  for (const Wrong& rank : session_.all_gather(mine)) {
    wrong += rank.elements;
    if (rank.elements > 0 && !result.first_wrong) result.first_wrong = rank.first;
  }
  result.wrong += wrong;
  if (wrong > 0)
    for (const Diagnosis& rank : session_.all_gather(diagnosis)) result.diagnosis.add(rank);
}

WrongElement CollectiveBench::describe_wrong(const Received& slot, const Slot& of,
                                             std::uint64_t index) {
  WrongElement wrong{slot.rank, of.operation, index, 0, 0};
  for (const SourceRange& s : slot.ranges)
    if (index >= s.begin && index < s.begin + s.count) {
      const auto element = fetch(slot, s, index, 1, *backend_.device, *stream_);
      wrong.found = element.found[0];
      wrong.expected = expected_bits(slot.operands, s.source, element.position);
    }
  return wrong;
}

void CollectiveBench::add_sample(Measurement& result, const Times& mine, int operations) const {
  const auto of_ranks = [&](double us) { return session_.all_gather(us / operations); };
  const std::vector<double> total_us = of_ranks(mine.total_us);
  result.samples_us.push_back(over_ranks(total_us));
  result.enqueue_us.push_back(over_ranks(of_ranks(mine.enqueue_us)));
  result.rank_us.resize(total_us.size());
  for (std::size_t rank = 0; rank < total_us.size(); ++rank)
    result.rank_us[rank] += total_us[rank] / settings_.repeats;
}

void CollectiveBench::gather_iterations(Measurement& result) {
  const std::size_t count = my_iterations_us_.size();
  const auto ranks = static_cast<std::size_t>(session_.world_size());
  std::vector<double> all(count * ranks);
  backend_.host->all_gather(std::span<const double>(my_iterations_us_), std::span<double>(all),
                            *stream_);
  for (std::size_t r = 0; r < ranks; ++r)
    result.iteration_us.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(r * count),
                                     all.begin() + static_cast<std::ptrdiff_t>((r + 1) * count));
  my_iterations_us_.clear();
  result.slowest_iteration_us = result.iteration_us[0];
  for (const auto& rank : result.iteration_us)
    for (std::size_t i = 0; i < count; ++i)
      result.slowest_iteration_us[i] = std::max(result.slowest_iteration_us[i], rank[i]);
}

Measurement CollectiveBench::measure(const Trial& trial) {
  Measurement result;
  const auto group = static_cast<std::size_t>(settings_.aggregate);
  const std::size_t operations = static_cast<std::size_t>(settings_.iterations) * group;
  const std::size_t bytes = std::max<std::size_t>(slot_bytes(trial), 1);
  const std::size_t room = arena_bytes_ / bytes;
  ENSURE(room >= group, "the arena holds no slot of this size");
  const std::size_t slots =
      std::clamp((room > group ? room - 1 : room) / group * group, group, operations);
  spare_is_own_ = room > slots;
  regions_left_ = kMostRegions;
  ring_.clear();
  for (std::size_t i = 0; i < slots; ++i) ring_.push_back(make_slot(trial, i));
  spare_ = make_slot(trial, spare_is_own_ ? slots : 0);
  const bool checked = settings_.check && operands::checkable(ring_[0].operands);
  Progress progress(describe(trial), static_cast<long>(operations) * settings_.repeats,
                    "operations", session_.is_root());
  naming(trial, [&] {
    for (int repeat = 0; repeat < settings_.repeats; ++repeat) {
      Times sample;
      for (std::size_t done = 0; done < operations; done += slots) {
        const std::size_t batch = std::min(slots, operations - done);
        const std::size_t first = static_cast<std::size_t>(repeat) * operations + done;
        for (std::size_t i = 0; i < batch; ++i) ring_[i].operation = static_cast<long>(first + i);
        if (!spare_is_own_) run_untimed(trial, 1);
        if (settings_.check) prepare(trial, batch);
        const Times times = run(trial, batch);
        if (checked) check(trial, batch, result);
        sample.total_us += times.total_us;
        sample.enqueue_us += times.enqueue_us;
        progress.update(static_cast<long>(first + batch));
      }
      result.iterations += settings_.iterations;
      add_sample(result, sample, static_cast<int>(operations));
    }
    if (settings_.one_by_one) gather_iterations(result);
    result.skipped = std::min(static_cast<std::size_t>(settings_.skip),
                              std::max<std::size_t>(1, result.slowest_iteration_us.size()) - 1);
  });
  return result;
}

WaitingTimes analyse_waiting(const std::vector<std::vector<double>>& iteration_us) {
  constexpr double kShare = 0.25;
  constexpr double kNoise_us = 20;
  const std::size_t ranks = iteration_us.size();
  const std::size_t iterations = iteration_us[0].size();
  std::vector<double> transfer;
  std::vector<double> longest_wait;
  std::vector<std::vector<double>> waits(ranks);
  std::vector<std::size_t> times_last(ranks);
  for (std::size_t i = 0; i < iterations; ++i) {
    std::size_t last = 0;
    double longest = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      if (iteration_us[r][i] < iteration_us[last][i]) last = r;
      longest = std::max(longest, iteration_us[r][i]);
    }
    ++times_last[last];
    transfer.push_back(iteration_us[last][i]);
    longest_wait.push_back(longest - transfer.back());
    for (std::size_t r = 0; r < ranks; ++r)
      waits[r].push_back(iteration_us[r][i] - transfer.back());
  }
  WaitingTimes result;
  result.transfer_us = median_of(transfer);
  result.wait_for_straggler_us = median_of(longest_wait);
  for (const auto& wait : waits) result.wait_us.push_back(median_of(wait));
  const auto most = std::max_element(times_last.begin(), times_last.end());
  if (ranks > 1 && 2 * *most > iterations &&
      result.wait_for_straggler_us > std::max(kShare * result.transfer_us, kNoise_us))
    result.straggler = static_cast<int>(most - times_last.begin());
  return result;
}

}  // namespace shakedown::collectives
