// What bin/compare says of what it did not measure: other numbers of ranks, buckets, batches and
// links, by the step model fitted to what it did, whose own error on that stands beside it.
#pragma once

#include <string>
#include <vector>

#include "training/comparison.hpp"

namespace shakedown {

/// For each model and precision, of the batches that were measured with it on the most ranks:
/// writes the records and returns what people read. Rank 0 alone.
std::string forecast(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown
