// Calls that may never return: of a library without a time-out of its own, of a driver that hangs,
// of a file system whose server is gone. A thread watches them, or makes them and is given up.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace shakedown {

/// Notices a call of this thread that does not return.
class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// `expired` runs in the watch's thread, once, when a call has taken longer than `seconds` (of
  /// one that begins after others, at most an eighth more), or lasts at `end`; infinity: never.
  CallWatch(double seconds, std::function<void()> expired,
            Clock::time_point end = Clock::time_point::max());
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// Makes the call under watch, at the cost of some 10 ns. From one thread, one at a time.
  template <class Call>
  void during(Call&& call) {
    const Returned returned{*this};
    begin();
    call();
  }
  /// For a call that returns by the end of the watch.
  void begin() { begun_.store(last_tick(), std::memory_order_release); }
  /// Whether a call is being made.
  bool is_calling() const { return begun_ != kNone; }
  /// Whether the last call took too long, so that `expired` has run or does. From its thread.
  bool was_late() const { return was_late_; }

 private:
  /// Of the clock, at most kTick ago: much cheaper to read, as some virtual machines have the
  /// clock.
  static Clock::rep last_tick() {
    timespec tick{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    return Clock::duration(std::chrono::seconds(tick.tv_sec) +
                           std::chrono::nanoseconds(tick.tv_nsec))
        .count();
  }
  static constexpr std::chrono::milliseconds kTick{10};  // Linux's longest
  static constexpr Clock::rep kNone = 0;
  static constexpr Clock::rep kLate = -1;
  struct Returned {
    CallWatch& watch;
    ~Returned() { watch.was_late_ = watch.begun_.exchange(kNone) == kLate; }
  };
  void watch(Clock::duration limit, Clock::time_point end, const std::function<void()>& expired);

  std::atomic<Clock::rep> begun_{kNone};
  bool was_late_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

/// Ends the process when it has not ended by itself: a scheduler that runs a health check must get
/// an answer, and a driver, a file server or MPI's start can hang any call.
class Watchdog {
 public:
  /// After `seconds` runs `report` and ends the process with ExitCode::inconclusive, unless the
  /// watchdog has ended before.
  Watchdog(double seconds, std::function<void()> report);

 private:
  CallWatch watch_;
};

/// Starts `call` in a thread of its own that nobody waits for: unlike std::async's, the future may
/// be given up. `call` must own all that it uses.
template <class T>
std::future<T> start_detached(std::function<T()> call) {
  auto task = std::make_shared<std::packaged_task<T()>>(std::move(call));
  auto result = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  return result;
}

}  // namespace shakedown
