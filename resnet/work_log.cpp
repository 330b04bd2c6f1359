#include "resnet/work_log.hpp"

namespace shakedown {

std::size_t WorkLog::record() {
  if (used_ == events_.size()) events_.push_back(device_.make_event());
  events_[used_]->record(stream_);
  return used_++;
}

void WorkLog::start(int times) {
  for (std::size_t i = events_.size(); i < used_ * static_cast<std::size_t>(times); ++i)
    events_.push_back(device_.make_event());
  works_.clear();
  used_ = 0;
  on_ = true;
  mark(Phase::forward);
}

void WorkLog::mark(Phase phase) {
  phase_ = phase;
  last_ = record();
}

void WorkLog::note(const Work& work) {
  const std::size_t begin = last_;
  last_ = record();
  works_.push_back({work, phase_, begin, last_});
}

std::vector<TimedWork> WorkLog::stop() {
  on_ = false;
  stream_.synchronize();
  std::vector<TimedWork> timed;
  for (const Noted& noted : works_)
    timed.push_back(
        {noted.work, noted.phase, events_[noted.end]->milliseconds_since(*events_[noted.begin])});
  return timed;
}

}  // namespace shakedown
