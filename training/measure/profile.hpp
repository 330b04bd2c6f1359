// Where the time of a configuration's steps goes.
#pragma once

#include <optional>
#include <vector>

#include "training/measure/breakdown.hpp"

namespace shakedown::training {

/// The same steps with more and more of them: the exchange alone, after the computation, during it.
struct Profile {
  Trace alone;                  // the exchange alone
  std::optional<Trace> serial;  // as --no-overlap; where the strategy overlaps
  Trace steps;
};

/// Runs them; to be restarted after. Every rank calls it.
Profile profile_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                      const MpiSession& session);

/// Times of a step's exchanges, one after another, and of its pushes and pulls if it has any.
struct ExchangeSums {
  double all_ms = 0;
  std::optional<double> push_ms;
  std::optional<double> pull_ms;
};
ExchangeSums exchange_sums(const Trace& steps);

/// break_down() with what the other runs add. `none`: steps of the same ranks without an exchange,
/// or null.
Breakdown break_down(const Profile& profile, const Trace* none);

/// exchange_times(); none where there are more than are worth looking at.
std::vector<ExchangeTimes> bucket_times(const Trace& steps);

}  // namespace shakedown::training
