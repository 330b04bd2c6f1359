// The one table of bin/compare, and the verdicts below it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "training/programs/comparison.hpp"

namespace shakedown::training {

/// The lowest, the middle and the highest of the rounds.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
};

/// A configuration over its rounds.
struct TableRow {
  const Result* result = nullptr;
  Spread images_per_s;  // of one round: its 95 % interval, or nothing but the median
  double step_ms = 0;
  std::optional<double> efficiency_vs_none;
  double exposed_ms = 0;
  double hidden_ms = 0;
  double memory_bytes = 0;  // of the rank that has most
};
/// The rows of what was measured, the fastest first.
std::vector<TableRow> rows_of(const std::vector<Result>& results);

/// Of the round whose step, and whose step without an exchange, are nearest to their medians; of
/// two as near, the shorter one's: medians of each term over the rounds would not add up.
const Breakdown& account_of(const Result& result);

/// The outcome's name, "waived", or "-" without one.
std::string certificate_of(const Result& result);
/// The headline: the configurations compared, and the machine.
std::string headline(const Job& job);

/// The table of one bench: at most 110 columns.
std::string table_of(const std::vector<Result>& results);

/// Verdicts of what failed, was not certified or was skipped, with their causes; else the
/// certificates.
std::vector<std::string> lines_of_verdicts(const std::vector<Result>& results);

}  // namespace shakedown::training
