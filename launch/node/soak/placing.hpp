// An error tried again on other GPUs of the same model: where they have it too, it is the
// program's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "launch/node/soak/load.hpp"

namespace shakedown::node {

/// The jurors that try the error of another one: the next two.
std::vector<int> helpers_of(int juror, int jurors);

/// `task` is what repeats this rank's error; empty: it has none. Each helper tries it by `attempt`.
/// Returns what the helpers of this rank found. Collective of the jurors.
Attempts attempts_elsewhere(const MpiSession& jurors, const std::string& task,
                            const std::function<Attempts(const std::string& task)>& attempt);

/// An error that was placed on its GPU, and how to try it on others.
struct PlacedError {
  std::size_t mismatch = 0;  // its index in `found`
  std::string task;
  std::string before;  // of the mismatch's cause, before the placing's
  Evidence evidence;
  int processor = 0;
};

/// Places it anew by what other GPUs make of it, where there are any. Collective of the jurors.
void place_by_others(const MpiSession& jurors, std::optional<PlacedError>& placed,
                     const std::string& unit,
                     const std::function<Attempts(const std::string& task)>& attempt,
                     std::vector<Mismatch>& found);

}  // namespace shakedown::node
