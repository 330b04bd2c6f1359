#include "common/watch.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace shakedown {
namespace {
constexpr double kLongest_s = 1e8;  // what a clock can count to
}  // namespace

CallWatch::CallWatch(double seconds, std::function<void()> expired) {
  if (seconds > kLongest_s) return;
  thread_ = std::thread([this, seconds, expired = std::move(expired)] {
    watch(std::chrono::duration<double>(seconds), expired);
  });
}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CallWatch::watch(std::chrono::duration<double> limit, const std::function<void()>& expired) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, limit / 8, [this] { return has_ended_; })) {
    auto begun = begun_.load();
    if (begun == kNone || std::chrono::steady_clock::duration(now() - begun) <= limit) continue;
    if (!begun_.compare_exchange_strong(begun, kLate)) continue;  // it has returned
    lock.unlock();
    return expired();
  }
}

namespace {
constexpr std::chrono::seconds kPatience{1};
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
