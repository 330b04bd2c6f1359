// What bin/collective_perf prints and records: nccl-tests' table and JSON, and record lines.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "collectives/perf/bench.hpp"
#include "collectives/perf/plan.hpp"
#include "common/mpi_session.hpp"
#include "common/placement.hpp"
#include "common/record.hpp"
#include "common/statistics.hpp"
#include "common/units.hpp"

namespace shakedown::collectives {

// The printed table: nccl-tests' lines, to the column, for its users and their parsers.

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

/// A group of NCCL_TESTS_SPLIT, in one row.
struct GroupRate {
  int group = 0;
  std::vector<int> ranks;
  double busbw_gbs = 0;  // by its ranks' mean time
};
/// Of every group.
std::vector<GroupRate> rates_of_groups(const Trial& trial, const Measurement& measured,
                                       const Plan& plan);
/// "slowest group 1: 11.9 GB/s, ranks 1, 3; median of 2 groups 12.1 GB/s".
std::string text_of(const std::vector<GroupRate>& groups);

/// What all measurements add up to, as nccl-tests prints and judges it.
struct Tally {
  std::optional<double> min_mean_busbw_gbs = std::nullopt;
  long wrong_rows = 0;  // measurements in which an element was wrong
  long measured = 0;
  double busbw_sum_gbs = 0;

  void count_wrong(const Measurement& one) { wrong_rows += one.wrong > 0 ? 1 : 0; }
  void count_busbw(double gbs) {
    busbw_sum_gbs += gbs;
    ++measured;
  }
  double mean_busbw_gbs() const;
  /// Of the mean: OK, FAILED, or empty where it is not judged.
  std::string judgement() const;
  /// Fail where an element was wrong or the mean is below the bar.
  Outcome outcome() const;
};

/// The lines before the rows: what runs, with which libraries, on which devices.
std::string preamble(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                     const Backend& backend, const Json& devices);
/// Of every rank, as nccl-tests' JSON has it. Collective.
Json devices_of(const Plan& plan, const Backend& backend, const MpiSession& session);
std::string table_header(const PerfOptions& options);
std::string row_start(const Trial& trial);
std::string row_half(const Figures& figures, const PerfOptions& options);
/// `taken_bytes`: of GPU memory by start, buffers and operations; empty: not known.
std::string footer(const PerfOptions& options, const Tally& tally,
                   const std::vector<double>& taken_bytes);
/// Its line of these, as nccl-tests -M 1 has it.
std::string memory_line(const std::vector<double>& taken_bytes);
/// "2026-11-21 16:40:00", as nccl-tests has it.
std::string local_now();

// The "collective" record of one operation at one size and placement.

/// Fields of every record: where it was measured and how, so that records can be compared.
/// Collective.
Json conditions_of(const PerfOptions& options, const Plan& plan, const Communicator& communicator,
                   const Backend& backend, const MpiSession& session);

/// The record of one measurement, without the conditions.
Json record_of(const Trial& trial, const Measurement& measured, const Figures& figures,
               const Plan& plan, const MpiSession& session);

/// Of a row of which `fields` are the record with its conditions: its busbw, up to 64 KiB its
/// latency. None where nothing was exchanged, or --path was on, as to write NCCL's log is slow.
std::optional<judge::Observation> observation_of(const Json& fields, const Figures& figures,
                                                 const Communicator& communicator,
                                                 const NodeMap& nodes,
                                                 const std::vector<Unit>& units);

/// "all_reduce float32 sum 8 MiB in place", of a "collective" record.
std::string name_of_row(const Json& collective);

/// "rank 1 on n2, iteration 7, element 3: expected 0x0, found 0x10".
std::string describe(const WrongElement& wrong, const MpiSession& session);

// The .json file of nccl-tests' -J, in the layout of its version 3; booleans are strings there.

class NcclTestsJson {
 public:
  /// Nothing is written where the path is empty. As nccl-tests, uses PATH.0, PATH.1 where PATH
  /// exists. Throws UsageError where the file cannot be written; the functions below throw
  /// InconclusiveError (disk full).
  NcclTestsJson(const std::string& path, const PerfOptions& options, const Plan& plan,
                const Backend& backend, const Json& devices);

  void start_row(const Trial& trial);
  void add_half(bool in_place, const Figures& figures, const Measurement& measured);
  void end_row(int iterations);
  void finish(const Tally& tally);

 private:
  void write() const;

  std::string path_;
  bool cputime_ = false;
  Json file_;
  Json row_;
};

}  // namespace shakedown::collectives
