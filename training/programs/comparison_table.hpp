// The one table of bin/compare, for people and as CSV.
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
/// Four significant digits at least: "3067", "123.4", "92.51".
std::string text_of_rate(double images_per_s);

/// The headline: the configurations compared, and the machine.
std::string headline(const Job& job);

/// The table of one bench: at most 110 columns.
std::string table_of(const std::vector<Result>& results);

/// Writes the rows of all benches; skipped configurations have empty figures. Throws
/// InconclusiveError if the file cannot be written.
void write_csv(const std::string& path, const std::vector<Result>& results);

}  // namespace shakedown::training
