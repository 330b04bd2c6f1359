// Notices a library's call that does not return, where the library has no time-out of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

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

}  // namespace shakedown
