// The timeline of a rank's steps: events on its streams, read after a step is done, so that
// looking costs it no host synchronisation. Only the requested steps are traced.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/device.hpp"
#include "resnet/work_log.hpp"

namespace shakedown::training {

// Times are ms since a trace began.

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

/// The events of a step that is traced; or of a graph, which records them with each launch.
class Marks {
  friend class Timeline;
  struct Mark {
    Phase phase;
    int block;
    const Event* event;
  };
  struct Span {
    const char* what;
    double bytes;
    const Event* ready;  // null: the last mark before the graph
    std::chrono::steady_clock::time_point launched;
    const Event* begin;
    const Event* end;
  };

  std::vector<std::unique_ptr<Event>> events_;
  std::size_t used_ = 0;
  const Event* begin_ = nullptr;  // of a step
  std::vector<Mark> marks_;
  std::vector<Span> spans_;
};

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timeline(Device& device) : device_(device) {}

  /// A trace begins. The stream must be idle; waits for it once.
  void start(Stream& compute);
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
  void mark(Phase phase, int block = -1);

  /// Enqueues `body` on the stream as an exchange of what the last mark finished.
  template <class Body>
  void exchange(const char* what, double bytes, Stream& stream, Body&& body) {
    if (!tracing_) return body();
    const auto launched = Clock::now();
    const Event* ready = last_mark();
    const Event* begin = record(stream);
    body();
    now_.spans_.push_back({what, bytes, ready, launched, begin, record(stream)});
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
  const Event* last_mark() const;
  double ms(const Event* event) const;

  Device& device_;
  Stream* compute_ = nullptr;
  std::unique_ptr<Event> origin_;
  Clock::time_point began_;
  bool tracing_ = false;
  Marks now_;
};

}  // namespace shakedown::training
