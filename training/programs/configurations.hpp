// The configurations that bin/compare measures, and their order.
#pragma once

#include <vector>

#include "common/backend.hpp"
#include "training/programs/compare_options.hpp"

namespace shakedown::training {

struct Configuration {
  StepOptions options;
  int ranks = 1;        // the job's first
  std::string setting;  // that it differs in from plain ddp (settings.hpp), or empty

  const std::string& strategy() const { return options.strategy.strategy; }
};

/// "ddp, 25 MiB", or of a setting "ddp, bucket-copy".
std::string strategy_label(const Configuration& configuration);
/// "ddp, 25 MiB on 4 ranks".
std::string label_of(const Configuration& configuration);

/// Configurations of one model, precision and batch: measured interleaved and compared with one
/// another. The first is `none` on one rank, and each number of ranks has its `none`, requested or
/// not; settings have their plain ddp.
using Bench = std::vector<Configuration>;

/// What a job has, where strategies need it.
struct JobRanks {
  BackendKind backend = BackendKind::cpu;
  int count = 1;
  int peers = 0;         // its first ranks whose GPUs can be peers (common/peers.hpp)
  std::string no_peers;  // why no more can
};

/// Collective. Looks for peers only where all strategies are compared.
JobRanks ranks_of(const CompareOptions& options, Backend& backend, const MpiSession& session);

/// All combinations of the options' lists that a strategy can run, each once, and all of a named
/// strategy that can run none; a bucket cap counts only where there are buckets. All ranks of the
/// job compute where the options name no number. Throws UsageError naming a setting that changes
/// nothing, unless all of them were requested.
std::vector<Bench> benches_of(const CompareOptions& options, const JobRanks& job);

/// Precisions that the backend computes in another, the switches of --settings all that change
/// nothing, the strategies that no bench has on a number of ranks, as they need more or peers, and
/// why; "" if there are none.
std::string left_out(const CompareOptions& options, const JobRanks& job,
                     const std::vector<Bench>& benches);

/// The order of a round over `count` configurations: rotated from round to round, so that a drift
/// of the machine meets all of them alike.
std::vector<std::size_t> turns(std::size_t count, int round, int rounds);

}  // namespace shakedown::training
