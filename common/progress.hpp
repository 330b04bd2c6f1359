// A progress line for long work: one line redrawn on a terminal, a plain line now and then else.
#pragma once

#include <chrono>
#include <string>

namespace shakedown {

class Progress {
 public:
  /// `shown` is false on all ranks but one. `unit` names what is counted ("steps").
  Progress(std::string title, long total, std::string unit, bool shown);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call as often as convenient; prints at most twice a second, or every ten seconds as lines.
  void update(long done, const std::string& remark = "");

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  long total_;
  std::string unit_;
  bool shown_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

/// "4:05" or "1:02:03".
std::string readable_duration(double seconds);

}  // namespace shakedown
