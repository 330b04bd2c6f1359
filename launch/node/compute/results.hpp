// What the ranks measured, as rank 0 gathers it for the judge; the tables and records of it.
#pragma once

#include <string>
#include <vector>

#include "common/judge/judge.hpp"
#include "launch/node/compute/rates.hpp"
#include "launch/node/health/facts/node_report.hpp"

namespace shakedown::node {

// Who else uses the GPUs while their rates are measured: such rates are no measure of a GPU.

/// The GPUs of all nodes with their processes, and which of those are this job's. Collective.
std::vector<NodeReport> read_processes(const MpiSession& session);

/// Whether the GPU is on a node where confidential computing is on.
bool is_confidential(const std::vector<NodeReport>& reports, const std::string& uuid);

/// What else uses each rank's GPU; empty where nothing is known to. `gpus`: the ranks' UUIDs.
/// `before`: read before this job opened its GPUs; `now`: while it has them open.
std::vector<std::string> used_by_others(const std::vector<std::string>& gpus,
                                        const std::vector<NodeReport>& before,
                                        const std::vector<NodeReport>& now);

/// Of one rank's series.
judge::Observation observation_of(const Series& series, const Unit& unit, int look);

/// What the ranks measured in one look. Complete on rank 0 alone; of the same metrics in the same
/// order for each rank.
struct Measured {
  std::vector<judge::Observation> observations;
  std::vector<std::string> wrong;  // of each observation: the first error in its data; or empty
};
/// `series`: of this rank. Notes what makes rates no measure of their device: ranks that share
/// cores, and who else uses the GPU, before this job (`before`, by read_processes) and now.
/// Collective.
Measured gather(const MpiSession& session, const std::vector<Unit>& units,
                const std::vector<Series>& series, int look, const std::vector<NodeReport>& before);

/// Why the rates of ranks that share cores are not judged: "3 ranks on 2 cores of n1", of
/// each rank; empty where they do not. `cores`: those that a rank may run on, none of a GPU's.
std::vector<std::string> shared_cores(const std::vector<std::string>& hosts,
                                      const std::vector<std::vector<int>>& cores);

/// A verdict per observation of wrong data; where all devices, of two or more, are wrong alike, it
/// is the program or a library.
std::vector<Verdict> wrong_data(const Measured& measured);

/// At most 110 columns: a line per metric.
std::string table_of(const std::vector<judge::Observation>& observations,
                     const judge::Limits& limits);

/// The "compute_round" record of a metric's newest samples, on all ranks. Collective; the fields
/// are complete on rank 0.
Json round_record_of(const MpiSession& session, const Series& series, std::size_t first_sample);

}  // namespace shakedown::node
