// Signals that request a program to stop: they are noted, so that it ends at a moment of its
// choice.
#pragma once

#include <csignal>
#include <string>
#include <utility>
#include <vector>

namespace shakedown {

class StopSignals {
 public:
  /// From now on TERM, INT, HUP, USR1 and USR2 are noted; the second one ends the process. Those
  /// that are ignored (nohup) stay so. At most one object at a time.
  StopSignals();
  /// The handlers that were installed before.
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// "SIGTERM", or "" while none has come.
  std::string received() const;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace shakedown
