#include "resnet/work_log.hpp"

namespace shakedown {

void WorkLog::record() {
  if (used_ == events_.size()) events_.push_back(device_.make_event());
  events_[used_++]->record(stream_);
}

void WorkLog::start() {
  works_.clear();
  used_ = 0;
  on_ = true;
  record();
}

void WorkLog::note(const Work& work) {
  works_.push_back(work);
  record();
}

std::vector<TimedWork> WorkLog::stop() {
  on_ = false;
  stream_.synchronize();
  std::vector<TimedWork> timed;
  for (std::size_t i = 0; i < works_.size(); ++i)
    timed.push_back({works_[i], events_[i + 1]->milliseconds_since(*events_[i])});
  return timed;
}

}  // namespace shakedown
