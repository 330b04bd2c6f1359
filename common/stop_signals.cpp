#include "common/stop_signals.hpp"

#include <fmt/format.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

#include "common/detached.hpp"
#include "common/mpi_session.hpp"

namespace shakedown {
namespace {

// A handler can reach nothing that is not static.
volatile std::sig_atomic_t first = 0;
std::atomic<std::int64_t> first_at_ms = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() {  // of the clocks, a handler may call this one
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// Whether it is the first signal. One of another stop ends the process.
bool is_first(int number) {
  if (first == 0) {
    first_at_ms = now_ms();
    first = number;
    return true;
  }
  if (now_ms() - first_at_ms >= kSameStopMs) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // delivered when the handler returns
  }
  return false;
}

extern "C" void note(int number) { is_first(number); }

std::vector<int> signals_to_note() {
  first = 0;
  return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
}

// Of LastWords: posted by a signal, or without one when its object ends.
sem_t woken;
volatile std::sig_atomic_t ending = 0;

extern "C" void wake(int number) {
  if (!is_first(number)) return;
  ending = number;
  sem_post(&woken);
}

/// Whether `report` returned in time; where it throws (a full disk) it did.
bool returns(const std::function<void()>& report, std::chrono::milliseconds patience) {
  const auto done = start_detached<int>([report] { return report(), 0; });
  return done.wait_for(patience) == std::future_status::ready;
}

std::thread thread_of(const std::function<void()>& report, std::chrono::milliseconds patience) {
  first = ending = 0;
  sem_init(&woken, 0, 0);
  return std::thread([report, patience] {
    while (sem_wait(&woken) != 0) {
    }
    if (ending == 0) return;
    if (!returns(report, patience)) {
      const std::string text = fmt::format(
          "error: stopped by SIG{}; the end of the record was not written within {:g} s: its file "
          "blocks\n",
          sigabbrev_np(ending), std::chrono::duration<double>(patience).count());
      returns([text] { std::fputs(text.c_str(), stderr); }, patience);
    }
    std::signal(ending, SIG_DFL);
    std::raise(ending);
  });
}

std::vector<int> signals_to_end() {
  std::vector<int> signals{SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  if (launched_rank().empty()) signals.push_back(SIGTERM);
  return signals;
}

}  // namespace

SignalHandler::SignalHandler(const std::vector<int>& signals, void (*handler)(int)) {
  for (const int number : signals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction now {};
    now.sa_handler = handler;
    now.sa_flags = SA_RESTART;
    sigaction(number, &now, nullptr);
    before_.emplace_back(number, before);
  }
}

SignalHandler::~SignalHandler() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
}

StopSignals::StopSignals() : handler_(signals_to_note(), note) {}

std::string StopSignals::received() const {
  return first == 0 ? "" : std::string("SIG") + sigabbrev_np(first);
}

LastWords::LastWords(const std::function<void()>& report, std::chrono::milliseconds patience)
    : thread_(thread_of(report, patience)), handler_(signals_to_end(), wake) {}

LastWords::~LastWords() {
  sem_post(&woken);
  thread_.join();
}

}  // namespace shakedown
