#include "launch/node/health/facts/watched_calls.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace shakedown::node {
namespace {

using Clock = CallLimits::Clock;

struct GivenUp {};  // thrown through the sequence

}  // namespace

struct WatchedCalls::Caller::State {
  CallLimits limits;
  mutable std::mutex mutex;
  std::condition_variable at_the_end;
  const char* call = nullptr;  // in progress, or late
  Clock::time_point started;
  bool given_up = false;
  bool ended = false;

  /// When a call that starts then is late.
  Clock::time_point deadline(Clock::time_point start) const {
    const auto longest = std::chrono::duration<double>(limits.call_s);
    return std::min(limits.end, start + std::chrono::duration_cast<Clock::duration>(longest));
  }
  bool is_late() const { return call != nullptr && Clock::now() > deadline(started); }
};

void WatchedCalls::Caller::begin(const char* call) {
  const std::lock_guard lock(state_->mutex);
  state_->call = call;
  state_->started = Clock::now();
}

void WatchedCalls::Caller::end() {
  const std::lock_guard lock(state_->mutex);
  if (state_->is_late()) state_->given_up = true;
  if (state_->given_up) throw GivenUp();
  state_->call = nullptr;
}

WatchedCalls::WatchedCalls(const CallLimits& limits, std::function<void(Caller&)> sequence)
    : state_(std::make_shared<Caller::State>()) {
  state_->limits = limits;
  std::thread([state = state_, sequence = std::move(sequence)]() mutable {
    try {
      Caller caller(state);
      sequence(caller);
    } catch (const GivenUp&) {
    }
    sequence = nullptr;  // before it counts as ended: what it used is free
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->at_the_end.notify_all();
  }).detach();
}

std::optional<std::string> WatchedCalls::wait() {
  std::unique_lock lock(state_->mutex);
  // Calls come and go without a word to this thread: it looks again when the one that it saw, or
  // one that begins now, would be late.
  while (!state_->ended && !state_->is_late())
    state_->at_the_end.wait_until(
        lock, state_->deadline(state_->call == nullptr ? Clock::now() : state_->started) +
                  std::chrono::milliseconds(1));
  if (!state_->ended) state_->given_up = true;
  if (!state_->given_up) return std::nullopt;
  return state_->call;
}

bool WatchedCalls::stuck() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up && !state_->ended;
}

}  // namespace shakedown::node
