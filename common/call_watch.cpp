#include "common/call_watch.hpp"

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

}  // namespace shakedown
