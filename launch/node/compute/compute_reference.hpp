// The rates of good machines, from a record of compute_perf.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shakedown::node {

/// One metric of one model; empty: the reference does not have it.
struct ReferenceFigures {
  std::vector<double> rates;
  std::vector<double> clocks_mhz, temperatures_c;  // one per device
};

class ComputeReference {
 public:
  /// None.
  ComputeReference() = default;
  /// Of the text of the record `path`; those of other sizes, or timed for other `seconds`,
  /// are not comparable. Throws UsageError where it has no record of compute_perf.
  ComputeReference(const std::string& path, const std::string& text, int size, std::size_t bytes,
                   double seconds);

  ReferenceFigures figures(const std::string& model, const std::string& metric) const;

 private:
  std::map<std::string, ReferenceFigures> figures_;  // by model and metric
};

}  // namespace shakedown::node
