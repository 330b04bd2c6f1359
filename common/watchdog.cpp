#include "common/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "common/detached.hpp"

namespace shakedown {

namespace {
constexpr std::chrono::seconds kPatience{1};
constexpr double kLongest_s = 1e8;  // what a clock can count to
}  // namespace

Watchdog::Watchdog(double seconds, std::function<void()> report)
    : thread_([this, seconds, report = std::move(report)] {
        std::unique_lock lock(mutex_);
        if (called_off_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kLongest_s)),
                                 [this] { return is_off_; }))
          return;
        // The report itself may hang, where it writes to what the check waits for.
        start_detached<int>([report] {
          report();
          return std::fflush(stdout);
        }).wait_for(kPatience);
        std::_Exit(static_cast<int>(ExitCode::inconclusive));
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_off_ = true;
  }
  called_off_.notify_one();
  thread_.join();
}

}  // namespace shakedown
