// Notices a library's call that does not return, where the library has no time-out of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "common/error.hpp"

namespace shakedown {

class CallWatch {
 public:
  /// `expired` runs in the watch's thread, once, when a call has taken longer than `seconds` (at
  /// most an eighth more); infinity: never.
  CallWatch(double seconds, std::function<void()> expired);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// Makes the call under watch, at the cost of reading a clock. From one thread, one at a time.
  template <class Call>
  void during(Call&& call) {
    const Returned returned{*this};
    begun_ = now();
    call();
  }
  /// Whether a call is being made.
  bool is_calling() const { return begun_ != kNone; }
  /// Whether the last call took too long, so that `expired` has run or does. From its thread.
  bool was_late() const { return was_late_; }

 private:
  static constexpr std::chrono::steady_clock::rep kNone = 0;
  static constexpr std::chrono::steady_clock::rep kLate = -1;
  struct Returned {
    CallWatch& watch;
    ~Returned() { watch.was_late_ = watch.begun_.exchange(kNone) == kLate; }
  };
  static std::chrono::steady_clock::rep now() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }
  void watch(std::chrono::duration<double> limit, const std::function<void()>& expired);

  std::atomic<std::chrono::steady_clock::rep> begun_{kNone};
  bool was_late_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::thread thread_;
};

// Ends the process when it has not ended by itself: a scheduler that runs a health check must get
// an answer, and a driver, a file server or MPI's start can hang any call.

class Watchdog {
 public:
  /// After `seconds` runs `report` and ends the process with ExitCode::inconclusive.
  Watchdog(double seconds, std::function<void()> report);
  /// It is called off.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable called_off_;
  bool is_off_ = false;
  std::thread thread_;
};

// A call that may never return: of a file system whose server is gone, or of a driver that hangs.

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
