// The printed table: nccl-tests' lines, to the column, for its users and their parsers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/perf/bench.hpp"
#include "collectives/perf/plan.hpp"
#include "common/statistics.hpp"

namespace shakedown::collectives {

/// One half of a row.
struct Figures {
  double time_us = 0;
  double cputime_us = 0;
  double algbw_gbs = 0;  // 1e9 bytes/s
  double busbw_gbs = 0;
  std::optional<std::uint64_t> wrong;  // elements; nothing where they were not checked
  Summary spread;                      // of the samples, us
  std::vector<double> samples;         // batches, or one by one iterations on their slowest rank
};
/// The figures of a measurement by nccl-tests' formulas, with the median sample as the time.
Figures figures_of(const Trial& trial, const Measurement& measured, int ranks, bool checked);

/// Totals of all measurements.
struct Totals {
  long wrong_rows = 0;  // measurements in which an element was wrong
  double mean_busbw_gbs = 0;
  std::string judgement;  // of the mean: OK, FAILED, or empty where it is not judged
};

/// The lines before the rows: what runs, with which libraries, on which devices. Collective.
std::string preamble(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                     const Backend& backend, const MpiSession& session);
std::string table_header(const PerfOptions& options);
std::string row_start(const Trial& trial);
std::string row_half(const Figures& figures, const PerfOptions& options);
std::string footer(const PerfOptions& options, const Totals& totals);
/// "2026-11-21 16:40:00", as nccl-tests has it.
std::string local_now();

}  // namespace shakedown::collectives
