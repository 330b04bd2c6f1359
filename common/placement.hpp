// Which device each rank takes: pure decisions over what every rank reports, so that all ranks
// decide alike and tests need no GPU.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"

namespace shakedown {

/// What one rank sees of its machine.
struct RankView {
  std::string host;
  std::vector<std::string> gpus;  // UUIDs, by device index
  std::string gpu_problem;        // why there are none, where that is known
};

/// Why the first rank that knows a reason sees no GPU, as " (reason)"; else empty.
std::string first_problem(const std::vector<RankView>& ranks);

/// Resolves `--backend`: auto is gpu when every rank sees a GPU, cpu when none does. Throws
/// UsageError naming the ranks when only some do, or when gpu is asked for and there is none.
BackendKind choose_backend(const std::string& option, const std::vector<RankView>& ranks);

/// The device index that every rank takes: the first GPU it sees that no earlier rank of its host
/// has. Serves both ways of exposing GPUs (all visible to each rank, or one each). Throws
/// UsageError when a rank is left without, naming host, ranks and GPUs.
std::vector<int> place_on_gpus(const std::vector<RankView>& ranks);

/// Threads for one rank: the cores it may run on, each divided by the number of ranks of this host
/// that may run on it too; at least 1. `affinities` holds the core numbers of each local rank.
int fair_threads(const std::vector<std::vector<int>>& affinities, std::size_t local_rank);

}  // namespace shakedown
