#include "launch/node/health/facts/watched_calls.hpp"

#include <thread>
#include <utility>

namespace shakedown::node {
namespace {

using Clock = std::chrono::steady_clock;

struct GivenUp {};  // thrown through the sequence

}  // namespace

struct WatchedCalls::Caller::State {
  std::chrono::duration<double> deadline;
  mutable std::mutex mutex;
  std::condition_variable at_the_end;
  const char* call = nullptr;  // in progress, or past its deadline
  Clock::time_point started;
  bool given_up = false;
  bool ended = false;

  bool is_late() const { return call != nullptr && Clock::now() - started > deadline; }
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

WatchedCalls::WatchedCalls(double deadline_s, std::function<void(Caller&)> sequence)
    : state_(std::make_shared<Caller::State>()) {
  state_->deadline = std::chrono::duration<double>(deadline_s);
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
  const auto deadline =
      std::chrono::duration_cast<Clock::duration>(state_->deadline) + std::chrono::milliseconds(1);
  // Calls come and go without a word to this thread: it looks again when the one that it saw, or
  // one that begins now, would be late.
  while (!state_->ended && !state_->is_late())
    state_->at_the_end.wait_until(
        lock, (state_->call == nullptr ? Clock::now() : state_->started) + deadline);
  if (!state_->ended) state_->given_up = true;
  if (!state_->given_up) return std::nullopt;
  return state_->call;
}

bool WatchedCalls::stuck() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up && !state_->ended;
}

}  // namespace shakedown::node
