#include "collectives/injection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <thread>

#include "collectives/links/links.hpp"
#include "collectives/perf/bench.hpp"
#include "common/error.hpp"
#include "common/options.hpp"
#include "common/program.hpp"

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
        flip_bit(device_, slot.call.recv, injection_.index, injection_.bit);
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

  unsigned long long check(View found, const Pattern& pattern, int source, std::uint64_t start,
                           int message, std::string& complaint) override {
    if (is_wrong(injection_, rank_, message))
      flip_bit(device_, found, injection_.index, injection_.bit);
    return LinkMessages::check(found, pattern, source, start, message, complaint);
  }

 private:
  Injection injection_;
  Device& device_;
  int rank_;
};

}  // namespace

void declare_options(OptionSet& options, InjectionOptions& values) {
  options.heading("");
  options.add("--inject-fault", values.fault,
              "RANK[:OPERATION[:INDEX[:BIT]]]: flip a bit of what this rank receives");
  options.add("--inject-delay", values.delay,
              "RANK:MICROSECONDS: this rank sleeps before each iteration or message");
}

Injection parse_injection(const InjectionOptions& options, int ranks) {
  Injection injection;
  char rest = 0;
  if (!options.fault.empty()) {
    const int read = std::sscanf(options.fault.c_str(), "%d:%ld:%zu:%d%c", &injection.wrong_rank,
                                 &injection.operation, &injection.index, &injection.bit, &rest);
    if (read < 1 || read > 4 || injection.wrong_rank < 0 || injection.wrong_rank >= ranks)
      throw UsageError(fmt::format(
          "--inject-fault {}: must be RANK[:OPERATION[:INDEX[:BIT]]] with a rank below {}",
          options.fault, ranks));
  }
  if (!options.delay.empty()) {
    const int read = std::sscanf(options.delay.c_str(), "%d:%d%c", &injection.late_rank,
                                 &injection.delay_us, &rest);
    if (read != 2 || injection.late_rank < 0 || injection.late_rank >= ranks ||
        injection.delay_us < 0)
      throw UsageError(
          fmt::format("--inject-delay {}: must be RANK:MICROSECONDS with a rank below {}",
                      options.delay, ranks));
  }
  return injection;
}

std::unique_ptr<CollectiveBench> make_bench(const Injection& injection, Communicator& communicator,
                                            Backend& backend, const MpiSession& session,
                                            const BenchSettings& settings,
                                            std::size_t largest_bytes) {
  if (injection.none())
    return std::make_unique<CollectiveBench>(communicator, backend, session, settings,
                                             largest_bytes);
  return std::make_unique<InjectedBench>(injection, communicator, backend, session, settings,
                                         largest_bytes);
}

std::unique_ptr<LinkMessages> make_messages(const Injection& injection, Backend& backend,
                                            const MpiSession& session,
                                            const MessageSettings& settings) {
  if (injection.none()) return std::make_unique<LinkMessages>(backend, settings);
  return std::make_unique<InjectedMessages>(injection, backend, session, settings);
}

}  // namespace shakedown::collectives
