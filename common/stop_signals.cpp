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

std::int64_t now_ms() {  // of the clocks, a handler may call this one
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// The first signal, as a handler may keep it.
struct FirstSignal {
  volatile std::sig_atomic_t number = 0;
  std::atomic<std::int64_t> at_ms = 0;
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);

  /// Whether it is the first. One of another stop ends the process.
  bool note(int other) {
    if (number == 0) {
      at_ms = now_ms();
      number = other;
      return true;
    }
    if (now_ms() - at_ms >= kSameStopMs) {
      std::signal(other, SIG_DFL);
      std::raise(other);  // delivered when the handler returns
    }
    return false;
  }
};

// A handler can reach nothing that is not static.
FirstSignal noted;   // of StopSignals
FirstSignal ending;  // of LastWords
sem_t woken;         // posted by that signal, or without one when the object ends

extern "C" void note(int number) { noted.note(number); }

std::vector<int> signals_to_note() {
  noted.number = 0;
  return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
}

extern "C" void wake(int number) {
  if (ending.note(number)) sem_post(&woken);
}

/// Whether `report` returned in time; where it throws (a full disk) it did.
bool returns(const std::function<void()>& report, std::chrono::milliseconds patience) {
  const auto done = start_detached<int>([report] { return report(), 0; });
  return done.wait_for(patience) == std::future_status::ready;
}

std::thread thread_of(const std::function<void()>& report, std::chrono::milliseconds patience) {
  ending.number = 0;
  sem_init(&woken, 0, 0);
  return std::thread([report, patience] {
    while (sem_wait(&woken) != 0) {
    }
    if (ending.number == 0) return;
    if (!returns(report, patience)) {
      const std::string text = fmt::format(
          "error: stopped by SIG{}; the end of the record was not written within {:g} s: its file "
          "blocks\n",
          sigabbrev_np(ending.number), std::chrono::duration<double>(patience).count());
      returns([text] { std::fputs(text.c_str(), stderr); }, patience);
    }
    std::signal(ending.number, SIG_DFL);
    std::raise(ending.number);
  });
}

std::vector<int> signals_to_end() {
  std::vector<int> signals{SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
  if (launched_with_others().empty()) signals.push_back(SIGTERM);
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
  return noted.number == 0 ? "" : std::string("SIG") + sigabbrev_np(noted.number);
}

LastWords::LastWords(const std::function<void()>& report, std::chrono::milliseconds patience)
    : thread_(thread_of(report, patience)), handler_(signals_to_end(), wake) {}

LastWords::~LastWords() {
  sem_post(&woken);
  thread_.join();
}

}  // namespace shakedown
