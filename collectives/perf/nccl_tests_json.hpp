// The .json file of nccl-tests' -J, in the layout of its version 3; booleans are strings there.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "collectives/perf/perf_table.hpp"
#include "collectives/perf/plan.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

class NcclTestsJson {
 public:
  /// Nothing is written where the path is empty. As nccl-tests, uses PATH.0, PATH.1 where PATH
  /// exists. Collective. Throws UsageError where the file cannot be written; the functions below
  /// throw InconclusiveError (disk full).
  NcclTestsJson(const std::string& path, const PerfOptions& options, const Plan& plan,
                const Backend& backend, const MpiSession& session);

  void start_row(const Trial& trial);
  void add_half(bool in_place, const Figures& figures, const Measurement& measured);
  void end_row(int iterations);
  void finish(const Totals& totals);

 private:
  void write() const;

  std::string path_;
  bool cputime_ = false;
  Json file_;
  Json row_;
};

}  // namespace shakedown::collectives
