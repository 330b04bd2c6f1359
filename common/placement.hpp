// Which device and how many threads each rank uses: pure decisions over what every rank reports, so
// that all ranks decide alike and tests need no GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

/// The machine as one rank sees it.
struct RankView {
  std::string host;
  std::vector<std::string> gpus;  // UUIDs, by device index
  std::string gpu_problem;        // why there are none, where that is known
  std::string gpu_request = "";   // as gpu_request() has it
};

/// Why the first rank that knows a reason sees no GPU, as " (reason)"; else empty.
std::string first_problem(const std::vector<RankView>& ranks);

/// The variable by which a user or Slurm requests GPUs for this process, as "SLURM_JOB_GPUS=0,1";
/// empty where none does, and where CUDA_VISIBLE_DEVICES hides all GPUs. `variable` reads the
/// environment, as std::getenv does.
std::string gpu_request(const std::function<const char*(const char*)>& variable);

/// Resolves `--backend`: auto is gpu when every rank sees a GPU, cpu when none does and none was
/// requested. Throws InconclusiveError, naming ranks and hosts, where a GPU is missing on some of
/// them, or on all and one was requested; UsageError where the gpu backend is not built.
BackendKind choose_backend(const std::string& option, const std::vector<RankView>& ranks,
                           bool gpu_built);

/// The device index of every rank: the first GPU it sees that no earlier rank of its host
/// has. Serves both ways of exposing GPUs (all visible to each rank, or one each). Throws
/// UsageError when a rank is left without, naming host, ranks and GPUs.
std::vector<int> place_on_gpus(const std::vector<RankView>& ranks);

/// How many threads a rank computes with, and a remark on that for people.
struct ThreadChoice {
  int threads = 1;
  std::string remark;
  int cores = 1;  // the rank's fair share of those of its host
};
/// `requested` (OMP_NUM_THREADS) where that is above 0, else the rank's fair share of the cores of
/// its host, which has `online` of them: those it may run on, each divided by the number of ranks
/// of this host that may run on it too; at least 1. `cores` are those that each rank may run on.
ThreadChoice choose_threads(const std::vector<std::string>& hosts,
                            const std::vector<std::vector<int>>& cores, std::size_t rank,
                            int requested, long online);

// Which node each rank is on.

class OptionSet;

/// The nodes, in the order of their first ranks.
struct NodeMap {
  std::vector<std::string> names;
  std::vector<int> node_of;     // by rank
  std::vector<int> local_rank;  // by rank: its place on its node, which is its rail

  const std::string& name_of(int rank) const;
  std::vector<int> ranks_per_node() const;
};

/// From the host of every rank.
NodeMap map_nodes(const std::vector<std::string>& hosts);

/// The same; with `pretended` above 0 instead that many blocks of ranks, "node0", "node1", ...
/// Throws UsageError that names --pretend-nodes if there are fewer ranks.
NodeMap map_nodes(const std::vector<std::string>& hosts, int pretended);

/// Throws where the ranks are not on the machines that were meant. A machine is a host name under
/// one boot id: two names of one machine are one, containers of one machine with names of their own
/// are several. InconclusiveError where fewer than `requested` answered (0: that is unknown);
/// UsageError where two have one name, by their boot ids or as MPI sees them: it has a `local_rank`
/// 0 on each.
void check_machines(const std::vector<std::string>& hosts, const std::vector<std::string>& boot_ids,
                    const std::vector<int>& local_ranks, int requested);

/// How many hosts launch/mpi was to start ranks on, of SHAKEDOWN_HOSTS; 0 where it did not start
/// them. Throws UsageError where it is no number.
int requested_hosts();

/// --pretend-nodes N, hidden: for tests on one host.
void declare_pretended_nodes(OptionSet& options, int& value);

}  // namespace shakedown
