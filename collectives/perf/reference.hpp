// Compares the rows of a sweep with those of an earlier run's record, where they are comparable.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "collectives/perf/bench.hpp"
#include "common/verdict.hpp"

namespace shakedown::collectives {

/// A row of the sweep and the same row of the reference.
struct ComparedRow {
  std::string name;
  Trial trial;
  std::vector<double> reference_us;              // samples
  std::vector<std::vector<double>> measured_us;  // samples of the sweep, then of each measurement
                                                 // that was made again
};

/// A row that is slower than the reference is measured again this many times, each time after all
/// other such rows, and fails where it is slower in every measurement: with five samples each, 20
/// that all lie above the reference's five, by chance in one of 53,130 rows.
inline constexpr int kMeasuredAgain = 3;

/// Whether the median of one measurement exceeds the reference's by more than the tolerance, and
/// their intervals do not overlap: distribution-free 95 % intervals of the median where both have
/// six samples or more, else ranges. results/report --against judges the same way.
bool is_slower(std::span<const double> samples_us, std::span<const double> reference_us,
               double tolerance_percent);
/// In every measurement so far.
bool is_slower(const ComparedRow& row, double tolerance_percent);

/// Inconclusive where more than one in twenty sweeps of `rows` rows would have a row as slow by
/// chance, because the reference has too few samples.
Verdict judge(const ComparedRow& row, std::size_t rows, double tolerance_percent);

class Reference {
 public:
  /// From the text of the record `path`. Throws UsageError naming file and line.
  Reference(const std::string& path, const std::string& text, double tolerance_percent);

  /// Adds a row that was just measured: a "collective" record.
  void add(const Json& collective, const Trial& trial);
  /// The rows that are slower in every measurement so far; what is measured again is added to them.
  std::vector<ComparedRow*> slower_rows();
  /// The verdicts on the rows added since the last call; rows that could not be compared are
  /// inconclusive, with the reason.
  std::vector<Verdict> judge_rows(const std::string& program);

 private:
  /// The last such row of the file; null, and why, where there is none.
  const Json* find(const Json& collective, std::string& difference) const;

  std::string path_;
  double tolerance_percent_;
  std::map<std::string, std::vector<Json>> rows_;  // by what they are, in the file's order
  std::vector<ComparedRow> compared_;
  std::map<std::string, std::vector<std::string>> not_compared_;  // why, and the rows' names
};

}  // namespace shakedown::collectives
