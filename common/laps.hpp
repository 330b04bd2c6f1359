// Times between marks on a stream.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

class Laps {
 public:
  /// For about `count` laps. Events are made here, before what is timed: of a long run those of its
  /// last laps, which the device has yet to reach.
  Laps(Device& device, int count) {
    constexpr int kAhead = 256;
    for (int i = 0; i <= std::min(count, kAhead); ++i) marks_.push_back(device.make_event());
  }
  /// Enqueues: a lap ends, and the next one begins. The first call begins the first.
  void mark(Stream& stream) {
    if (marked_ >= marks_.size()) measure(marked_ - marks_.size() + 1);  // its event is used again
    event(marked_++).record(stream);
  }
  /// Waits for the last mark. Milliseconds of each lap.
  std::vector<double> milliseconds() {
    event(marked_ - 1).synchronize();
    while (ms_.size() + 1 < marked_) measure(ms_.size() + 1);
    return ms_;
  }

 private:
  Event& event(std::size_t mark) { return *marks_[mark % marks_.size()]; }
  /// The lap that ends with this mark, once the device has reached it.
  void measure(std::size_t mark) {
    event(mark).synchronize();
    ms_.push_back(event(mark).milliseconds_since(event(mark - 1)));
  }

  std::vector<std::unique_ptr<Event>> marks_;
  std::size_t marked_ = 0;
  std::vector<double> ms_;
};

}  // namespace shakedown
