#include "resnet/recorder.hpp"

#include "common/ensure.hpp"

namespace shakedown {

const Event* Recorder::record(Stream& stream) {
  if (now_.used_ == now_.events_.size()) now_.events_.push_back(device_.make_event());
  Event* event = now_.events_[now_.used_++].get();
  event->record_time(stream);
  return event;
}

void Recorder::piece(Phase phase, int block, const Work& work) {
  const Event* begin = now_.last_;
  now_.last_ = record(compute_);
  now_.pieces_.push_back({phase, block, work, begin, now_.last_});
}

void Recorder::clear() {
  now_.used_ = 0;
  now_.pieces_.clear();
  now_.exchanges_.clear();
}

void Recorder::start_calls(int times) {
  const std::size_t expected = now_.used_ * static_cast<std::size_t>(times);
  while (now_.events_.size() < expected) now_.events_.push_back(device_.make_event());
  clear();
  records_calls_ = true;
  begin(Phase::forward);
}

std::vector<TimedWork> Recorder::stop_calls() {
  records_calls_ = false;
  compute_.synchronize();
  std::vector<TimedWork> timed;
  for (const Marks::Piece& call : now_.pieces_)
    timed.push_back({call.work, call.phase, call.end->milliseconds_since(*call.begin)});
  return timed;
}

void Recorder::start_trace() {
  origin_ = device_.make_event();
  origin_->record_time(compute_);
  origin_->synchronize();
  began_ = Clock::now();
}

void Recorder::begin_step() {
  if (!tracing_) return;
  clear();
  now_.last_ = record(compute_);
}

void Recorder::launched(const Marks& captured) {
  if (!tracing_) return;
  const auto now = Clock::now();
  for (Marks::Exchange exchange : captured.exchanges_) {
    exchange.launched = now;
    if (exchange.ready == nullptr) exchange.ready = now_.last_;
    now_.exchanges_.push_back(exchange);
  }
  for (Marks::Piece piece : captured.pieces_) {
    if (piece.begin == nullptr) piece.begin = now_.last_;
    now_.pieces_.push_back(piece);
  }
  if (!captured.pieces_.empty()) now_.last_ = captured.last_;
}

TracedStep Recorder::read_step() {
  ENSURE(tracing_ && !now_.pieces_.empty(), "a step was traced");
  tracing_ = false;
  TracedStep step;
  for (const Marks::Piece& segment : now_.pieces_) {
    const double begin = step.segments.empty() ? ms(segment.begin) : step.segments.back().end_ms;
    step.segments.push_back({segment.phase, segment.block, begin, ms(segment.end)});
  }
  step.begin_ms = step.segments.front().begin_ms;
  step.end_ms = step.segments.back().end_ms;
  for (const Marks::Exchange& e : now_.exchanges_) {
    const std::chrono::duration<double, std::milli> launched = e.launched - began_;
    step.exchanges.push_back(
        {e.what, e.bytes, ms(e.ready), launched.count(), ms(e.begin), ms(e.end)});
  }
  return step;
}

}  // namespace shakedown
