// The tables of bin/compare --verbose.
#pragma once

#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// The effect of each setting on plain ddp; empty without settings.
std::string settings_table(const std::vector<Result>& results);

/// Details of one bench: scaling, cost, where the time of a step goes, the exchange bucket by
/// bucket, and the figures of certificates that failed.
std::string details_of(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown::training
