// A log of the kernels and library calls that a network enqueues, with the time of each: events
// between the calls, read when the work is done. It costs nothing between stop() and start().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/device.hpp"
#include "resnet/phase.hpp"

namespace shakedown {

/// A kernel, or a call of a library.
struct Work {
  const char* kernel = "";  // conv_forward, normalise_relu, ...
  int parameter = -1;       // index of the weights it belongs to, in the parameter table
  double bytes = 0;  // device memory at least: each input read once, each output written once
  double flop = 0;   // of convolutions and matrix products
};

struct TimedWork {
  Work work;
  Phase phase = Phase::forward;
  double ms = 0;
};

class WorkLog {
 public:
  WorkLog(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  /// Starts recording. `times`: expected number of calls relative to the previous recording, so
  /// that the events are created here and not while it records; 0: unknown.
  void start(int times = 0);
  /// Waits for the stream; all work since start(), in its order.
  std::vector<TimedWork> stop();

  /// Starts a phase. What was enqueued since the last logged work is not logged: an exchange, a
  /// wait for another stream.
  void begin(Phase phase) {
    if (on_) mark(phase);
  }

  /// Enqueues `body`, which is this work.
  template <class Body>
  void run(const Work& work, Body&& body) {
    body();
    if (on_) note(work);
  }

 private:
  struct Noted {
    Work work;
    Phase phase;
    std::size_t begin, end;  // events
  };
  void mark(Phase phase);
  void note(const Work& work);
  std::size_t record();

  Device& device_;
  Stream& stream_;
  bool on_ = false;
  Phase phase_ = Phase::forward;
  std::vector<Noted> works_;
  std::vector<std::unique_ptr<Event>> events_;
  std::size_t used_ = 0;
  std::size_t last_ = 0;  // event after which the next work begins
};

}  // namespace shakedown
