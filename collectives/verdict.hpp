// Judges each row by itself: against bars, or against the record of an earlier run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/record.hpp"

namespace shakedown {

class OptionSet;

struct BarOptions {
  double min_busbw_gbs = 0;   // of each operation's largest size; 0: none
  double max_latency_us = 0;  // of each operation's smallest size; 0: none
  std::string reference;
  double tolerance_percent = 5;
};
void declare_options(OptionSet& options, BarOptions& values);

struct Verdict {
  std::string name;  // "all_reduce float32 sum 8 MiB in place"
  std::string verdict;
  std::string cause;
  std::string scope = "operation";
};

/// A "verdict" record's fields.
Json record_of(const Verdict& verdict);

class Bars {
 public:
  /// Reads the reference: "collective" records. Throws UsageError naming the file and line.
  explicit Bars(const BarOptions& options);

  /// Of one "collective" record, and the time that the table shows of it. `smallest` and `largest`:
  /// whether the row is so of its sweep. Nothing where no bar applies and all elements are right.
  std::optional<Verdict> judge(const Json& collective, double shown_time_us, bool smallest,
                               bool largest) const;
  /// What --reference has of the same configuration, or null.
  const Json* reference_of(const Json& collective) const;
  /// "--min-busbw 300, --max-latency 5": those given of the bars on an operation's sizes.
  std::string bars_on_sizes() const;

 private:
  BarOptions options_;
  std::vector<Json> reference_;
};

}  // namespace shakedown
