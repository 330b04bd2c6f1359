// Times between marks on a stream.
#pragma once

#include <memory>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

class Laps {
 public:
  /// The events of `count` laps are made here, before what is timed.
  Laps(Device& device, int count) {
    for (int i = 0; i <= count; ++i) marks_.push_back(device.make_event());
  }
  /// Enqueues: a lap ends, and the next one begins. The first call begins the first.
  void mark(Stream& stream) { marks_[marked_++]->record(stream); }
  /// Waits for the last mark. Milliseconds of each lap.
  std::vector<double> milliseconds() const {
    marks_.back()->synchronize();
    std::vector<double> ms;
    for (std::size_t i = 1; i < marks_.size(); ++i)
      ms.push_back(marks_[i]->milliseconds_since(*marks_[i - 1]));
    return ms;
  }

 private:
  std::vector<std::unique_ptr<Event>> marks_;
  std::size_t marked_ = 0;
};

}  // namespace shakedown
