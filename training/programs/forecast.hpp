// What bin/compare says of what it did not measure: other numbers of ranks, batches and links, by
// the step model fitted to what it did. The records have it all, with the model's error, and
// results/report tells it; here is a short table, or where the model is off by more than 15 % on a
// step that was measured, one line.
#pragma once

#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// For each model and precision, of the batches that were measured with it on the most ranks:
/// writes the records and returns what people read. Rank 0 alone.
std::string forecast(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown::training
