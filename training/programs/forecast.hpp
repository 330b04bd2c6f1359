// Predictions of bin/compare for other numbers of ranks, batches and links, by the step model
// fitted to its measurements. The records hold all of them with the model's error, and
// results/report prints them. bin/compare prints a short table, or one line if the model is off by
// more than 15 % on a measured step.
#pragma once

#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// For each model and precision, of the batches that were measured with it on the most ranks:
/// writes the records and returns what people read. Rank 0 alone.
std::string forecast(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown::training
