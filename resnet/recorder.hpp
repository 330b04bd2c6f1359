// The recorder of device time: what a rank's streams did in a training step, from events around
// each piece of it. The events are read when the work is done, so that looking costs no host
// synchronisation; while nothing is recorded it costs nothing. measure/ reads what it returns:
// breakdown the steps, layer_times the calls.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
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

// Of a traced step: times are ms since the trace began.

/// A piece of a step on the compute stream. A step's pieces follow one another without a gap.
struct StepSegment {
  Phase phase = Phase::input;
  int block = -1;  // of forward and backward
  double begin_ms = 0;
  double end_ms = 0;
  double ms() const { return end_ms - begin_ms; }
};

/// One exchange, on whichever stream.
struct Exchanged {
  std::string what;      // all_reduce, reduce_scatter, all_gather, push, pull, ...
  double bytes = 0;      // of the buffer that is exchanged
  double ready_ms = 0;   // what it exchanges was computed
  double launch_ms = 0;  // the host enqueued it, or the graph that holds it: before `ready`,
                         // unless the host is late
  double begin_ms = 0;   // its stream got to it
  double end_ms = 0;
  double ms() const { return end_ms - begin_ms; }
};

struct TracedStep {
  double begin_ms = 0;
  double end_ms = 0;
  std::vector<StepSegment> segments;
  std::vector<Exchanged> exchanges;  // in the order of their launch
  double ms() const { return end_ms - begin_ms; }
};

/// Pieces of work and the events around them; or those of a graph, which records the events with
/// each launch.
class Marks {
  friend class Recorder;
  /// A call, or a segment of a step: from the last event of the compute stream to `end`.
  struct Piece {
    Phase phase;
    int block;
    Work work;
    const Event* begin;  // null: the last piece's end before the graph
    const Event* end;
  };
  struct Exchange {
    const char* what;
    double bytes;
    const Event* ready;  // as Piece::begin
    std::chrono::steady_clock::time_point launched;
    const Event* begin;
    const Event* end;
  };

  std::vector<std::unique_ptr<Event>> events_;
  std::size_t used_ = 0;
  const Event* last_ = nullptr;  // of the compute stream
  std::vector<Piece> pieces_;
  std::vector<Exchange> exchanges_;
};

class Recorder {
 public:
  using Clock = std::chrono::steady_clock;

  Recorder(Device& device, Stream& compute) : device_(device), compute_(compute) {}

  // Calls: every kernel and library call of the compute stream, with its time.

  /// Starts recording. `times`: expected number of calls relative to the previous recording, so
  /// that the events are created here and not while it records; 0: unknown.
  void start_calls(int times = 0);
  /// Waits for the stream; all work since start_calls(), in its order.
  std::vector<TimedWork> stop_calls();
  /// Starts a phase. What was enqueued since the last recorded work is not recorded: an exchange, a
  /// wait for another stream.
  void begin(Phase phase) {
    if (!records_calls_) return;
    phase_ = phase;
    now_.last_ = record(compute_);
  }
  /// Enqueues `body`, which is this work.
  template <class Body>
  void run(const Work& work, Body&& body) {
    body();
    if (records_calls_) piece(phase_, -1, work);
  }

  // Steps: segments of the compute stream, and exchanges. Only the requested steps are traced.

  /// A trace begins. The stream must be idle; waits for it once.
  void start_trace();
  /// When that was.
  Clock::time_point began() const { return began_; }
  /// The next step is traced.
  void trace_step() { tracing_ = true; }
  /// The traced step, all of which must be done. Ends tracing.
  TracedStep read_step();
  bool tracing() const { return tracing_; }

  /// The compute stream gets to the step.
  void begin_step();
  /// Labels the work enqueued on the compute stream since the last mark.
  void mark(Phase phase, int block = -1) {
    if (tracing_) piece(phase, block, {});
  }
  /// Enqueues `body` on the stream as an exchange of what the last mark finished.
  template <class Body>
  void exchange(const char* what, double bytes, Stream& stream, Body&& body) {
    if (!tracing_) return body();
    const auto launched = Clock::now();
    const Event* ready = now_.last_;
    const Event* begin = record(stream);
    body();
    now_.exchanges_.push_back({what, bytes, ready, launched, begin, record(stream)});
  }

  /// The marks of `body`, which captures work in a graph; they are not the current step's.
  template <class Body>
  Marks captured(Body&& body) {
    Marks step = std::exchange(now_, Marks());
    body();
    return std::exchange(now_, std::move(step));
  }
  /// The step continues with a launch of that graph.
  void launched(const Marks& captured);

 private:
  const Event* record(Stream& stream);
  void piece(Phase phase, int block, const Work& work);
  void clear();
  double ms(const Event* event) const { return event->milliseconds_since(*origin_); }

  Device& device_;
  Stream& compute_;
  std::unique_ptr<Event> origin_;  // of a trace
  Clock::time_point began_;
  bool tracing_ = false;
  bool records_calls_ = false;
  Phase phase_ = Phase::forward;  // of calls
  Marks now_;
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
