#include "common/stop_signals.hpp"

#include <string.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace shakedown {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

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

}  // namespace

StopSignals::StopSignals() {
  noted = 0;
  for (const int number : kSignals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction noting {};
    noting.sa_handler = note;
    noting.sa_flags = SA_RESTART;
    sigaction(number, &noting, nullptr);
    before_.emplace_back(number, before);
  }
}

StopSignals::~StopSignals() {
  for (const auto& [number, before] : before_) sigaction(number, &before, nullptr);
}

std::string StopSignals::received() const {
  return noted == 0 ? "" : std::string("SIG") + sigabbrev_np(noted);
}

}  // namespace shakedown
