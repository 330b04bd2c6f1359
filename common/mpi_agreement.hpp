// An agreement of all ranks on the highest of a small number each, step after step, that no step
// waits for.
#pragma once

#include <memory>

namespace shakedown {

class MpiSession;

class MpiAgreement {
 public:
  /// Collective. Ranks may be up to `slack` steps apart anyway.
  MpiAgreement(const MpiSession& session, int slack);
  ~MpiAgreement();
  MpiAgreement(const MpiAgreement&) = delete;
  MpiAgreement& operator=(const MpiAgreement&) = delete;

  /// Steps from a value to its effect: a non-blocking all-reduce needs log2(ranks) rounds, each of
  /// which goes on when a rank calls MPI, and hosts may be some steps apart.
  int lag() const;
  /// Adds this rank's value of this step. Returns the highest that any rank added lag() steps ago,
  /// the same on every rank; 0 before.
  int step(int value);
  /// Adds a value and returns the highest that has not been returned yet. Waits for all ranks.
  int settle(int value);

 private:
  struct Pending;
  std::unique_ptr<Pending> pending_;
};

}  // namespace shakedown
