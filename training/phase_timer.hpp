// How long a phase of the step takes on a stream, by events; no host synchronisation.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "common/device.hpp"
#include "common/statistics.hpp"

namespace shakedown {

class PhaseTimer {
 public:
  explicit PhaseTimer(Device& device) {
    for (Span& span : spans_) span = {device.make_event(), device.make_event()};
  }

  /// Times what `body` enqueues on the stream.
  template <class Body>
  void time(Stream& stream, Body&& body) {
    const Span& span = spans_[count_++ % kKept];
    span.begin->record(stream);
    body();
    span.end->record(stream);
  }

  /// Milliseconds, median of the last runs (kKept at most), which must be done; 0 before the first.
  double median_ms() const {
    std::vector<double> times;
    for (std::size_t i = 0; i < std::min<std::size_t>(count_, kKept); ++i)
      times.push_back(spans_[i].end->milliseconds_since(*spans_[i].begin));
    return times.empty() ? 0 : summarize(times).median;
  }

 private:
  static constexpr std::size_t kKept = 64;
  struct Span {
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
  };
  std::array<Span, kKept> spans_;
  std::size_t count_ = 0;
};

}  // namespace shakedown
