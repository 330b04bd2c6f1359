// The phases of a training step, for timelines and logs.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

/// `exchange`: gradients or weights move between ranks, or the compute stream waits for them.
enum class Phase { input, forward, backward, exchange, update };

constexpr const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::input: return "input";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::exchange: return "exchange";
    case Phase::update: return "update";
  }
  return "";
}

// A log of the kernels and library calls that a network enqueues, with the time of each: events
// between the calls, read when the work is done. It costs nothing between stop() and start().

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

// The rates that a device reaches with random data, measured on the spot: what calls and layers are
// compared with. Activations with many zeros draw less power: a call may exceed the matrix rate.

struct Roofs {
  double copy_gbs = 0;         // 10^9 bytes/s, read and written, of a copy within device memory
  std::size_t copy_bytes = 0;  // that were copied
  double matrix_tflops = 0;    // 10^12/s of a square matrix product in the network's precision
  int matrix_size = 0;
};

}  // namespace shakedown
