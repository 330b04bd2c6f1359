// Ends the process when it has not ended by itself: a scheduler that runs a health check must get
// an answer, and a driver, a file server or MPI's start can hang any call.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "common/error.hpp"

namespace shakedown {

class Watchdog {
 public:
  /// After `seconds` runs `report` and ends the process with ExitCode::inconclusive.
  Watchdog(double seconds, std::function<void()> report);
  /// It is called off.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable called_off_;
  bool is_off_ = false;
  std::thread thread_;
};

}  // namespace shakedown
