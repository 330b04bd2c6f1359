// Judges each row by itself, against the bars that the user set.
#pragma once

#include <optional>
#include <string>

#include "collectives/finding.hpp"
#include "common/record.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::collectives {

struct BarOptions {
  double min_busbw_gbs = 0;       // of each operation's largest size; 0: none
  double max_latency_us = 0;      // of each operation's smallest size; 0: none
  std::string reference;          // see reference.hpp
  double tolerance_percent = 10;  // processes on one machine differ by up to 7 % at a few us
};
void declare_options(OptionSet& options, BarOptions& values);

/// "all_reduce float32 sum 8 MiB in place", of a "collective" record.
std::string name_of_row(const Json& collective);

class Bars {
 public:
  explicit Bars(const BarOptions& options) : options_(options) {}

  /// Of one "collective" record, and the time that the table shows of it. `smallest` and `largest`:
  /// whether the row is so of its sweep. Nothing where no bar applies and all elements are right.
  std::optional<Finding> judge(const Json& collective, double shown_time_us, bool smallest,
                               bool largest) const;
  /// "--min-busbw 300, --max-latency 5": those given of the bars on an operation's sizes.
  std::string bars_on_sizes() const;

 private:
  BarOptions options_;
};

}  // namespace shakedown::collectives
