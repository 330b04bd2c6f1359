// Runs a plan: measures every row, prints it, records it, judges it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "collectives/perf/nccl_path.hpp"
#include "collectives/perf/options.hpp"
#include "collectives/perf/output.hpp"
#include "collectives/perf/plan.hpp"
#include "common/backend.hpp"
#include "common/exit_code.hpp"
#include "common/judging.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"

namespace shakedown::collectives {

/// Collective. Returns fail where an element was wrong or a bar was missed, else inconclusive where
/// a bar or a reference could not judge.
ExitCode sweep(const PerfOptions& options, Plan plan, Backend& backend, const MpiSession& session,
               NcclPath& path, Record& record);

// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.

/// Where more than one GPU is requested and no launcher has started this process, becomes
/// launch/mpi with that number of ranks of the same command; else returns. Call it before MPI
/// starts. Ends with 2 where this is a copy of the program, without launch/mpi next to its folder.
void relaunch_for_gpus(const PerfOptions& options, int argc, char** argv);

// The bars that a user has for a sweep.

/// Bars that judge none of an operation's rows, and why; none where they do.
std::optional<Verdict> idle_bars(const BarOptions& options, const Operation& operation,
                                 bool moves_data, int ranks);

/// --min-busbw, of the largest size of each operation, and --max-latency, of the smallest that
/// moves data: each judges the figure that the table shows.
class Bars {
 public:
  Bars(const BarOptions& options, const MpiSession& session, const std::string& program);

  bool any() const { return options_.min_busbw_gbs > 0 || options_.max_latency_us > 0; }
  /// `rows` of one operation are judged from here on.
  void start(const std::vector<Trial>& rows);
  /// A row that `observation` is about.
  void judge(const Trial& row, const Figures& figures, const judge::Observation& observation);
  /// Whether a row of the operation moves data.
  bool moves_data() const { return !smallest_.empty(); }
  judge::Judgement judgement() const { return judging_.judgement(); }

 private:
  BarOptions options_;
  Judging judging_;
  Record unrecorded_{""};
  std::map<DataType, std::size_t> smallest_;  // requested bytes of each type's rows that move data
  std::size_t largest_ = 0;
};

}  // namespace shakedown::collectives
