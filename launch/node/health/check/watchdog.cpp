#include "launch/node/health/check/watchdog.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "launch/node/health/facts/detached.hpp"

namespace shakedown::node {

namespace {
constexpr std::chrono::seconds kPatience{1};
}

Watchdog::Watchdog(double seconds, std::function<void()> report)
    : thread_([this, seconds, report = std::move(report)] {
        std::unique_lock lock(mutex_);
        if (called_off_.wait_for(lock, std::chrono::duration<double>(seconds),
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

}  // namespace shakedown::node
