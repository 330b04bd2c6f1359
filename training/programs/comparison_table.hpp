// The comparison for people.
#pragma once

#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// What the job compares, and where.
std::string headline(const Job& job);

/// "ddp, 25 MiB", or with a setting "ddp, 25 MiB, bucket-copy".
std::string strategy_label(const Configuration& configuration);
/// "ddp, 25 MiB on 4 ranks".
std::string label_of(const Configuration& configuration);

/// Of one bench, on rank 0: speed and efficiency, the fastest first, then cost and certificate.
/// Figures are medians over the rounds, ratios are taken within a round; what failed is named
/// below.
std::string table_of(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown::training
