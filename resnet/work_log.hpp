// What a network asks its device for, call by call, and how long each takes: events between the
// calls, read when the work is done. Silent, and free, between stop() and start().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/device.hpp"

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
  double ms = 0;
};

class WorkLog {
 public:
  WorkLog(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  /// From now on, whatever is enqueued on the stream is to be told of.
  void start();
  /// Waits for the stream; all work since start(), in its order.
  std::vector<TimedWork> stop();

  /// Enqueues `body`, which is this work.
  template <class Body>
  void run(const Work& work, Body&& body) {
    body();
    if (on_) note(work);
  }

 private:
  void note(const Work& work);
  void record();

  Device& device_;
  Stream& stream_;
  bool on_ = false;
  std::vector<Work> works_;
  std::vector<std::unique_ptr<Event>> events_;  // one before the first work and one behind each
  std::size_t used_ = 0;
};

}  // namespace shakedown
