#include "launch/node/health/watchdog.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace shakedown::node {

Watchdog::Watchdog(double seconds, std::function<void()> report)
    : thread_([this, seconds, report = std::move(report)] {
        std::unique_lock lock(mutex_);
        if (called_off_.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [this] { return is_off_; }))
          return;
        report();
        std::fflush(stdout);
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

}  // namespace shakedown::node
