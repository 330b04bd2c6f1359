#include "tests/support/injection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/wrong_data.hpp"
#include "common/program.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {
namespace {

void sleep_if_late(const Injection& injection, int rank) {
  if (injection.late_rank == rank)
    std::this_thread::sleep_for(std::chrono::microseconds(injection.delay_us));
}

bool is_wrong(const Injection& injection, int rank, long operation) {
  return injection.wrong_rank == rank &&
         (injection.operation < 0 || injection.operation == operation);
}

/// As a transport with the fault would have left it.
void damage(const Injection& injection, const Received& received, Device& device) {
  if (!injection.damage) return flip_bit(device, received.data, injection.index, injection.bit);
  const auto stream = device.make_stream();
  const std::size_t size = size_of(received.data.type);
  const std::size_t first = injection.first_byte / size;
  const std::size_t last = first + std::max<std::size_t>(injection.bytes / size, 1);
  for (const SourceRange& range : received.ranges) {
    const std::size_t begin = std::max(range.begin, first);
    const std::size_t end = std::min(range.begin + range.count, last);
    if (begin >= end) continue;
    operands::Region region = fetch(received, range, begin, end - begin, device, *stream);
    apply(*injection.damage, received.operands, 0, end - begin, region);
    std::vector<unsigned char> bytes((end - begin) * size);
    for (std::size_t i = 0; i < region.found.size(); ++i)
      std::memcpy(bytes.data() + i * size, &region.found[i], size);
    upload<unsigned char>(device, *stream, received.data.slice(begin, end - begin).data, bytes);
  }
}

class InjectedBench final : public CollectiveBench {
 public:
  InjectedBench(const Injection& injection, Communicator& communicator, Backend& backend,
                const MpiSession& session, const BenchSettings& settings, std::size_t largest_bytes)
      : CollectiveBench(communicator, backend, session, settings, largest_bytes),
        injection_(injection),
        device_(*backend.device),
        rank_(session.rank()) {}

 protected:
  void enqueue_iteration(const Trial& trial, std::size_t begin, std::size_t end) override {
    sleep_if_late(injection_, rank_);
    CollectiveBench::enqueue_iteration(trial, begin, end);
  }

  Times run(const Trial& trial, std::size_t slots) override {
    const Times times = CollectiveBench::run(trial, slots);
    for (const Slot& slot : ring().first(slots))
      if (is_wrong(injection_, rank_, slot.operation))
        damage(injection_, received(trial, slot), device_);
    return times;
  }

 private:
  Injection injection_;
  Device& device_;
  int rank_;
};

class InjectedMessages final : public LinkMessages {
 public:
  InjectedMessages(const Injection& injection, Backend& backend, const MpiSession& session,
                   const MessageSettings& settings)
      : LinkMessages(backend, settings),
        injection_(injection),
        device_(*backend.device),
        rank_(session.rank()) {}

  double time_us(Communicator& communicator, const std::function<void(Stream&)>& enqueue) override {
    return LinkMessages::time_us(communicator, [&](Stream& stream) {
      sleep_if_late(injection_, rank_);
      enqueue(stream);
    });
  }

  void check(const Received& received, int message, WrongWords& wrong) override {
    if (is_wrong(injection_, rank_, message)) damage(injection_, received, device_);
    LinkMessages::check(received, message, wrong);
  }

 private:
  Injection injection_;
  Device& device_;
  int rank_;
};

}  // namespace

Injection parse_injection(const std::string& fault, const std::string& delay, int ranks) {
  Injection injection;
  std::array<char, 16> name{};
  const int of_class =
      std::sscanf(fault.c_str(), "%d:%15[a-z_]:%ld:%zu:%zu", &injection.wrong_rank, name.data(),
                  &injection.operation, &injection.first_byte, &injection.bytes);
  for (const operands::WrongData kind : operands::all_wrong_data())
    if (operands::name_of(kind) == std::string_view(name.data()))
      injection.damage = Damage{.kind = kind, .rank = (injection.wrong_rank + 1) % ranks};
  const bool flips = std::sscanf(fault.c_str(), "%d:%ld:%zu:%d", &injection.wrong_rank,
                                 &injection.operation, &injection.index, &injection.bit) > 0;
  const int late = std::sscanf(delay.c_str(), "%d:%d", &injection.late_rank, &injection.delay_us);
  if ((!fault.empty() && (of_class > 1 ? !injection.damage : !flips)) ||
      (!delay.empty() && late != 2) || std::max(injection.wrong_rank, injection.late_rank) >= ranks)
    throw UsageError(fmt::format("no injection: fault '{}', delay '{}'", fault, delay));
  return injection;
}

std::unique_ptr<CollectiveBench> injected_bench(const Injection& injection,
                                                Communicator& communicator, Backend& backend,
                                                const MpiSession& session,
                                                const BenchSettings& settings,
                                                std::size_t largest_bytes) {
  return std::make_unique<InjectedBench>(injection, communicator, backend, session, settings,
                                         largest_bytes);
}

std::unique_ptr<LinkMessages> injected_messages(const Injection& injection, Backend& backend,
                                                const MpiSession& session,
                                                const MessageSettings& settings) {
  return std::make_unique<InjectedMessages>(injection, backend, session, settings);
}

}  // namespace shakedown::collectives
