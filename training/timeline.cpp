#include "training/timeline.hpp"

namespace shakedown {

const char* name_of(Part part) {
  switch (part) {
    case Part::input: return "input";
    case Part::forward: return "forward";
    case Part::backward: return "backward";
    case Part::exchange: return "exchange";
    case Part::update: return "update";
  }
  return "";
}

std::size_t Timeline::record(Stream& stream) {
  if (used_ == events_.size()) events_.push_back(device_.make_event());
  events_[used_]->record(stream);
  return used_++;
}

void Timeline::start(Stream& compute) {
  used_ = last_mark_ = 0;
  marks_.clear();
  spans_.clear();
  steps_.clear();
  compute_ = &compute;
  record(compute);
  events_.front()->synchronize();
  began_ = Clock::now();
}

void Timeline::mark(Part part, int block) {
  if (compute_ == nullptr) return;
  last_mark_ = record(*compute_);
  marks_.push_back({part, block, last_mark_});
}

void Timeline::end_step() {
  if (compute_ != nullptr) steps_.push_back({marks_.size(), spans_.size()});
}

double Timeline::ms(std::size_t event) const {
  return events_[event]->milliseconds_since(*events_.front());
}

std::vector<TracedStep> Timeline::stop() {
  compute_ = nullptr;
  std::vector<TracedStep> steps;
  std::size_t mark = 0;
  std::size_t span = 0;
  double now = 0;
  for (const StepEnd& end : steps_) {
    TracedStep& step = steps.emplace_back();
    step.begin_ms = now;
    for (; mark < end.marks; ++mark) {
      const Mark& m = marks_[mark];
      const double until = ms(m.event);
      step.segments.push_back({m.part, m.block, now, until});
      now = until;
    }
    step.end_ms = now;
    for (; span < end.spans; ++span) {
      const Span& s = spans_[span];
      const std::chrono::duration<double, std::milli> launched = s.launched - began_;
      step.exchanges.push_back(
          {s.what, s.bytes, ms(s.ready), launched.count(), ms(s.begin), ms(s.end)});
    }
  }
  return steps;
}

}  // namespace shakedown
