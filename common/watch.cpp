#include "common/watch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/exit_code.hpp"

namespace shakedown {

CallWatch::CallWatch(double seconds, std::function<void()> expired, Clock::time_point end) {
  constexpr double kLongest_s = 1e8;  // what a clock can count to
  if (seconds > kLongest_s) return;
  const auto limit =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  thread_ =
      std::thread([this, limit, end, expired = std::move(expired)] { watch(limit, end, expired); });
}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CallWatch::watch(Clock::duration limit, Clock::time_point end,
                      const std::function<void()>& expired) {
  // Calls come and go without a word to this thread: where it sees none it looks again soon.
  constexpr Clock::duration kBeforeEnd = std::chrono::milliseconds(5);
  const auto between =
      end == Clock::time_point::max() ? limit / 8 : std::min(limit / 8, kBeforeEnd);
  std::unique_lock lock(mutex_);
  for (;;) {
    auto begun = begun_.load();
    const auto late =
        begun == kNone ? Clock::now() + between
                       : std::min(end, Clock::time_point(Clock::duration(begun)) + kTick + limit);
    if (ended_.wait_until(lock, late, [this] { return has_ended_; })) return;
    if (begun == kNone || !begun_.compare_exchange_strong(begun, kLate)) continue;
    lock.unlock();
    return expired();
  }
}

Watchdog::Watchdog(double seconds, std::function<void()> report)
    : watch_(seconds, [report = std::move(report)] {
        constexpr std::chrono::seconds kPatience{1};
        // The report itself may hang, where it writes to what the check waits for.
        start_detached<int>([report] {
          report();
          return std::fflush(stdout);
        }).wait_for(kPatience);
        std::_Exit(static_cast<int>(ExitCode::inconclusive));
      }) {
  watch_.begin();
}

}  // namespace shakedown
