// The bars of a sweep: bars on its rows, an earlier run, and nccl-tests' bar on the mean.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/perf/perf_table.hpp"
#include "collectives/perf/reference.hpp"
#include "common/verdict.hpp"

namespace shakedown::collectives {

/// Judges one "collective" record and the time that the table shows for it. `smallest`, `largest`:
/// whether the row has the smallest size of its operation that moves data, and the largest size.
/// Empty if no bar applies and all elements are right.
std::optional<Verdict> judge_row(const BarOptions& options, const Json& collective,
                                 double shown_time_us, bool smallest, bool largest);

/// Keeps what the sweep's verdicts add up to.
class Bars {
 public:
  Bars(const BarOptions& options, std::optional<Reference> reference)
      : options_(options), reference_(std::move(reference)) {}

  /// `rows` of one operation are judged from here on.
  void start(const std::vector<Trial>& rows);
  // Add to the totals.
  void count_wrong(const Measurement& measured) { wrong_rows_ += measured.wrong > 0 ? 1 : 0; }
  void count_busbw(double gbs);
  /// Judges a row; `collective` is its record.
  void judge(const Json& collective, const Trial& trial, double shown_time_us);
  /// Bars on sizes are inconclusive where none of the operation's rows moved data.
  void finish_operation(const Operation& operation);

  /// Rows that are slower than the reference in every measurement so far; what is measured again is
  /// added to them.
  std::vector<ComparedRow*> slower_rows();
  void judge_by_reference(const std::string& program);

  /// The verdicts since the last call.
  std::vector<Verdict> take_verdicts();
  Totals totals() const;
  /// Fail where an element was wrong or a bar was missed; inconclusive where one could not judge.
  ExitCode result() const;

 private:
  void conclude(Verdict verdict);

  BarOptions options_;
  std::optional<Reference> reference_;
  std::optional<std::size_t> smallest_;  // requested bytes of the operation's rows that move data
  std::size_t largest_ = 0;
  std::vector<Verdict> verdicts_;
  Outcome worst_ = Outcome::pass;
  long wrong_rows_ = 0;
  long measured_ = 0;
  double busbw_sum_gbs_ = 0;
};

}  // namespace shakedown::collectives
