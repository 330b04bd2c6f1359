#include "training/exchange/timeline.hpp"

#include "common/error.hpp"

namespace shakedown::training {

const Event* Timeline::record(Stream& stream) {
  if (now_.used_ == now_.events_.size()) now_.events_.push_back(device_.make_event());
  Event* event = now_.events_[now_.used_++].get();
  event->record_time(stream);
  return event;
}

const Event* Timeline::last_mark() const {
  return now_.marks_.empty() ? now_.begin_ : now_.marks_.back().event;
}

double Timeline::ms(const Event* event) const { return event->milliseconds_since(*origin_); }

void Timeline::start(Stream& compute) {
  compute_ = &compute;
  origin_ = device_.make_event();
  origin_->record_time(compute);
  origin_->synchronize();
  began_ = Clock::now();
}

void Timeline::begin_step() {
  if (!tracing_) return;
  now_.used_ = 0;
  now_.marks_.clear();
  now_.spans_.clear();
  now_.begin_ = record(*compute_);
}

void Timeline::mark(Phase phase, int block) {
  if (tracing_) now_.marks_.push_back({phase, block, record(*compute_)});
}

void Timeline::launched(const Marks& captured) {
  if (!tracing_) return;
  const auto now = Clock::now();
  for (Marks::Span span : captured.spans_) {
    span.launched = now;
    if (span.ready == nullptr) span.ready = last_mark();
    now_.spans_.push_back(span);
  }
  now_.marks_.insert(now_.marks_.end(), captured.marks_.begin(), captured.marks_.end());
}

TracedStep Timeline::read_step() {
  ENSURE(tracing_ && now_.begin_ != nullptr, "a step was traced");
  tracing_ = false;
  TracedStep step;
  step.begin_ms = ms(now_.begin_);
  double now = step.begin_ms;
  for (const Marks::Mark& m : now_.marks_) {
    const double until = ms(m.event);
    step.segments.push_back({m.phase, m.block, now, until});
    now = until;
  }
  step.end_ms = now;
  for (const Marks::Span& s : now_.spans_) {
    const std::chrono::duration<double, std::milli> launched = s.launched - began_;
    step.exchanges.push_back(
        {s.what, s.bytes, ms(s.ready), launched.count(), ms(s.begin), ms(s.end)});
  }
  return step;
}

}  // namespace shakedown::training
