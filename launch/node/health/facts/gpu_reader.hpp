// Reads the GPUs of this host again and again. A GPU whose call has not returned is not called
// again until it has: no reading waits for it twice.
#pragma once

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/nvml_library.hpp"
#include "launch/node/health/facts/gpu_reading.hpp"

namespace shakedown::node {

class GpuReader {
 public:
  /// Opens NVML. Where that fails every reading says why. `deadline_s`: of each call; `whole_s`: of
  /// all that this reader ever does, four fifths of it for opening NVML, which is slow where
  /// the driver has to initialize its GPUs first.
  GpuReader(double deadline_s, const std::string& library, double whole_s = INFINITY);
  /// A library that is loaded already, of which every function is found by `find`.
  GpuReader(double deadline_s, const nvml::FindFunction& find);
  ~GpuReader();
  GpuReader(const GpuReader&) = delete;
  GpuReader& operator=(const GpuReader&) = delete;

  /// What does not change: the versions, or why there are no GPUs to read.
  const HostGpus& host() const;
  /// All GPUs at the same time. Takes the longest of their times, which is the deadline above that
  /// of the other GPUs where one's call newly does not return.
  HostGpus read(bool inforom = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where it `stalls` (--inject-fault stall), the call that reads a GPU's power never returns.
std::unique_ptr<GpuReader> open_reader(double deadline_s, bool stalls,
                                       const std::string& library = nvml::library_name());

// Calls that may never return, on a thread of their own, each under a deadline.

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
