// The one table of bin/compare, and the verdicts below it.
#pragma once

#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// Of the round whose step, and whose step without an exchange, are nearest to their medians; of
/// two as near, the shorter one's: medians of each term over the rounds would not add up.
const Breakdown& account_of(const Result& result);

/// The headline: the configurations compared, and the machine.
std::string headline(const Job& job);

/// The table of one bench: at most 110 columns.
std::string table_of(const std::vector<Result>& results);

/// Verdicts of what failed, was not certified or was skipped, with their causes; else the
/// certificates.
std::vector<std::string> lines_of_verdicts(const std::vector<Result>& results);

}  // namespace shakedown::training
