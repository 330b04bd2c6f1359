// The limits of every metric (results/reference/limits.json, which is embedded): one table of data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/verdict.hpp"

namespace shakedown::judge {

/// The value of a look's samples. `best`: other work on a link or a memory only adds time.
enum class Statistic { median, best, last };

/// Shares are of time: r = time / usual time - 1, and of a rate usual / rate - 1.
struct Limit {
  std::string metric;  // a glob: "collective/*/busbw"
  Statistic statistic = Statistic::median;
  std::size_t samples = 1;  // fewer are not judged
  int looks = 0;            // further ones at who seems slow, before it fails
  double floor = 0;         // the least r that fails; infinite: recorded and printed only
  double spread = 0;  // of units that are alike: the standard deviation of r, without a reference
  std::optional<double> share;  // of the peak, of a clock the base clock: below it, first
                                // principles fail it
  bool constant = false;        // a property of the GPU: two are peers
  bool warns = false;           // never fails
  std::optional<Class> class_;
  std::string
      rates;  // the class of rates: products, memory, host_link, links, collectives, training
  std::string action;
  std::optional<double> least, most;  // the user's bars, in the metric's unit
};

class Limits {
 public:
  /// Of the text of `file`: a list of rows, the first whose metric matches counts. "{a,b}" in a
  /// metric stands for a row each. Throws UsageError that names row and key.
  Limits(const std::string& text, const std::string& file);
  static const Limits& embedded();
  /// With each row of `text` changing the keys that it names, a later one last. Throws UsageError:
  /// an unknown key, a glob that matches none of the metrics that there are, a floor below 0.
  Limits with(const std::string& text, const std::string& file) const;
  /// The user's bar on one metric or glob. Throws UsageError where it matches no metric.
  void bar(const std::string& metric, std::optional<double> least, std::optional<double> most);

  /// None: the metric is not judged.
  const Limit* find(const std::string& metric) const;
  const std::vector<Limit>& rows() const { return rows_; }

 private:
  std::vector<Limit> rows_;
};

/// "*" is any text.
bool matches(std::string_view glob, std::string_view text);

}  // namespace shakedown::judge
