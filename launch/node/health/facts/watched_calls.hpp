// Calls that may never return, on a thread of their own, each under a deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/nvml_library.hpp"

namespace shakedown::node {

/// How long calls may take.
struct CallLimits {
  using Clock = std::chrono::steady_clock;
  double call_s = 5;                                 // one of them
  Clock::time_point end = Clock::time_point::max();  // when the last must have returned
};

/// A sequence of calls on a thread of its own. Where one is beyond its limits the sequence ends
/// there: the thread is left to itself, and stops when the call returns. What the
/// sequence uses must be its own until then.
class WatchedCalls {
 public:
  /// Passed to the sequence, to call by.
  class Caller {
   public:
    /// The function's status; kFunctionNotFound where the library lacks it.
    template <class... Parameters, class... Arguments>
    int operator()(const nvml::Function<int(Parameters...)>& function, Arguments... arguments) {
      begin(function.name);
      const int status = nvml::call(function, arguments...);
      end();
      return status;
    }

   private:
    friend class WatchedCalls;
    struct State;
    explicit Caller(std::shared_ptr<State> state) : state_(std::move(state)) {}
    void begin(const char* call);
    void end();  // ends the sequence by an exception when it was given up
    std::shared_ptr<State> state_;
  };

  /// Starts the thread. `sequence` keeps alive by its captures what it uses.
  WatchedCalls(const CallLimits& limits, std::function<void(Caller&)> sequence);

  /// Waits until the sequence has ended or one of its calls is beyond its limits: the name of that
  /// call, after which the sequence touches nothing more. None: all calls have returned in time.
  std::optional<std::string> wait();

  /// Whether the call that wait() named has still not returned.
  bool stuck() const;

 private:
  std::shared_ptr<Caller::State> state_;
};

}  // namespace shakedown::node
