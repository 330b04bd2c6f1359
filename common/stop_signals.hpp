// Signals that request a program to stop: noted, so that it ends at a moment of its choice, or
// ending it at once, after its last words.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace shakedown {

/// A handler of some signals. Those that are ignored (nohup) stay so.
class SignalHandler {
 public:
  SignalHandler(const std::vector<int>& signals, void (*handler)(int));
  /// The handlers that were installed before.
  ~SignalHandler();
  SignalHandler(const SignalHandler&) = delete;
  SignalHandler& operator=(const SignalHandler&) = delete;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

/// Slurm and a job script may both deliver one stop to a rank, as TERM and as USR2: only a signal
/// that comes this long after the first, or longer, ends the process at once.
constexpr int kSameStopMs = 1000;

class StopSignals {
 public:
  /// From now on TERM, INT, HUP, USR1 and USR2 are noted; one that comes kSameStopMs or more after
  /// the first ends the process. At most one object at a time.
  StopSignals();

  /// "SIGTERM", or "" while none has come.
  std::string received() const;

 private:
  SignalHandler handler_;
};

/// Lets a signal end the process after its last words. While a StopSignals lives, signals are noted
/// instead. At most one object at a time.
class LastWords {
 public:
  /// At INT, HUP, USR1 or USR2 `report` runs in a thread of its own. TERM is one of them only where
  /// this process is the only rank: a launcher sends TERM to the ranks that are left when one has
  /// failed. Where `report` does not return within `patience` (a file that blocks), or a second
  /// signal comes kSameStopMs or more after the first, the process ends without it.
  explicit LastWords(const std::function<void()>& report,
                     std::chrono::milliseconds patience = std::chrono::seconds(5));
  ~LastWords();

 private:
  std::thread thread_;
  SignalHandler handler_;
};

}  // namespace shakedown
