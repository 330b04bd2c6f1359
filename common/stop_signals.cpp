#include "common/stop_signals.hpp"

#include <semaphore.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <exception>

#include "common/mpi_session.hpp"

namespace shakedown {
namespace {

// A handler can reach nothing that is not static.
volatile std::sig_atomic_t noted = 0;
std::atomic<std::int64_t> noted_at_ms = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now_ms() {  // of the clocks, a handler may call this one
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void note(int number) {
  if (noted == 0) {
    noted_at_ms = now_ms();
    noted = number;
  } else if (now_ms() - noted_at_ms >= StopSignals::kSameStopMs) {
    std::signal(number, SIG_DFL);
    std::raise(number);  // delivered when this handler returns
  }
}

std::vector<int> signals_to_note() {
  noted = 0;
  return {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
}

// Of LastWords: posted by a signal, or without one when its object ends.
sem_t woken;
volatile std::sig_atomic_t ending = 0;

extern "C" void wake(int number) {
  ending = number;
  sem_post(&woken);
}

std::thread thread_of(const std::function<void()>& report) {
  ending = 0;
  sem_init(&woken, 0, 0);
  return std::thread([report] {
    while (sem_wait(&woken) != 0) {
    }
    if (ending == 0) return;
    try {
      report();
    } catch (const std::exception&) {  // a full disk: the process ends all the same
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
  return noted == 0 ? "" : std::string("SIG") + sigabbrev_np(noted);
}

LastWords::LastWords(const std::function<void()>& report)
    : thread_(thread_of(report)), handler_(signals_to_end(), wake) {}

LastWords::~LastWords() {
  sem_post(&woken);
  thread_.join();
}

}  // namespace shakedown
