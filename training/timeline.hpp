// What a rank's steps do and when: events on its streams, read after the steps are done, so that
// looking costs a step no host synchronisation. Silent between stop() and start().
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

/// What the compute stream is at. `exchange`: it exchanges, or waits for an exchange.
enum class Part { input, forward, backward, exchange, update };
const char* name_of(Part part);

// Times are ms since a trace began.

/// A piece of a step on the compute stream. A step's pieces follow one another without a gap.
struct Segment {
  Part part = Part::input;
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
  double launch_ms = 0;  // the host asked for it: before `ready`, unless the host is late
  double begin_ms = 0;   // its stream got to it
  double end_ms = 0;
  double ms() const { return end_ms - begin_ms; }
};

struct TracedStep {
  double begin_ms = 0;
  double end_ms = 0;
  std::vector<Segment> segments;
  std::vector<Exchanged> exchanges;  // in the order of their launch
  double ms() const { return end_ms - begin_ms; }
};

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timeline(Device& device) : device_(device) {}

  /// The stream must be idle; waits for it once.
  void start(Stream& compute);
  /// What was traced since; all of it must be done.
  std::vector<TracedStep> stop();
  /// When the trace began.
  Clock::time_point began() const { return began_; }

  /// What the compute stream was asked for since the last mark was this.
  void mark(Part part, int block = -1);
  void end_step();

  /// Enqueues `body` on the stream as an exchange of what the last mark finished.
  template <class Body>
  void exchange(const char* what, double bytes, Stream& stream, Body&& body) {
    if (compute_ == nullptr) return body();
    const auto launched = Clock::now();
    const std::size_t begin = record(stream);
    body();
    spans_.push_back({what, bytes, last_mark_, launched, begin, record(stream)});
  }

 private:
  struct Mark {
    Part part;
    int block;
    std::size_t event;
  };
  struct Span {
    const char* what;
    double bytes;
    std::size_t ready;  // events
    Clock::time_point launched;
    std::size_t begin, end;
  };
  struct StepEnd {
    std::size_t marks, spans;  // there were so many
  };

  std::size_t record(Stream& stream);
  double ms(std::size_t event) const;

  Device& device_;
  Stream* compute_ = nullptr;  // null: silent
  Clock::time_point began_;
  std::vector<std::unique_ptr<Event>> events_;  // the first is the beginning
  std::size_t used_ = 0;
  std::size_t last_mark_ = 0;
  std::vector<Mark> marks_;
  std::vector<Span> spans_;
  std::vector<StepEnd> steps_;
};

}  // namespace shakedown
