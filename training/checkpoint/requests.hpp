// When to write a checkpoint, and when to stop: signals to any rank, files in the folder, time. All
// ranks decide alike at the same step.
#pragma once

#include <chrono>
#include <string>

#include "common/mpi_agreement.hpp"
#include "common/mpi_session.hpp"
#include "common/stop_signals.hpp"

namespace shakedown::training {

enum class Request { none, save, stop };  // the strongest is the highest

class Requests {
 public:
  /// Files named SAVE and STOP in `dir` request what they are named after, and are removed. A
  /// checkpoint is due every `minutes`; 0: never. Ranks may be `slack` steps apart. Collective.
  Requests(const MpiSession& session, const std::string& dir, double minutes, int slack);

  /// After an update, or a batch of a validation: what some rank noticed some of them ago; no rank
  /// waits. Collective.
  Request after_step() { return static_cast<Request>(agreement_.step(noticed())); }
  /// The requests that any rank has noticed by now. Collective.
  Request now() { return static_cast<Request>(agreement_.settle(noticed())); }
  /// A checkpoint was written for another reason: the next is due `minutes` from now.
  void saved() { saved_ = Clock::now(); }
  /// From now on this rank requests to stop.
  void stop(const std::string& why) {
    if (stop_.empty()) stop_ = why;
  }

  /// "SIGUSR2 to rank 1", once stop was agreed. Collective.
  std::string reason() const;
  /// Since this rank noticed that it is to stop; 0 before.
  double seconds_since_notice() const;
  /// Steps from a notice to its effect.
  int lag() const { return agreement_.lag(); }
  /// The longest time in which this rank noticed nothing, as it was between two of these calls.
  double longest_gap_s() const { return longest_gap_.count(); }

 private:
  using Clock = std::chrono::steady_clock;
  int noticed();
  void look_at_files();
  bool take_file(const char* name) const;

  const MpiSession& session_;
  const std::string dir_;
  const std::chrono::duration<double> period_;
  StopSignals signals_;
  MpiAgreement agreement_;
  Clock::time_point saved_ = Clock::now();
  Clock::time_point looked_{};
  Clock::time_point noticed_{};
  std::chrono::duration<double> longest_gap_{0};
  Clock::time_point stop_noticed_{};
  bool save_ = false;
  std::string stop_;  // why
};

}  // namespace shakedown::training
