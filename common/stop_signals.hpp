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
  /// Slurm and a job script may both deliver one stop to a rank, as TERM and as USR2.
  static constexpr int kSameStopMs = 1000;

  /// From now on TERM, INT, HUP, USR1 and USR2 are noted; one that comes kSameStopMs or more after
  /// the first ends the process. Those that are ignored (nohup) stay so. At most one object at a
  /// time.
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
