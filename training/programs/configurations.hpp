// The configurations that bin/compare measures, and their order.
#pragma once

#include <vector>

#include "common/device.hpp"
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

/// All combinations of the options' lists that a strategy can run, each once; a bucket cap counts
/// only where there are buckets. `world_size` is the number of ranks where the options name none.
/// Throws UsageError naming a setting that changes nothing, unless all of them were requested.
std::vector<Bench> benches_of(const CompareOptions& options, BackendKind backend, int world_size);

/// The switches of --settings all that change nothing, the strategies that need more ranks, and
/// why;
/// "" if all are measured.
std::string left_out(const CompareOptions& options, BackendKind backend,
                     const std::vector<Bench>& benches, int world_size);

/// The order of a round over `count` configurations: rotated from round to round, so that a drift
/// of the machine meets all of them alike.
std::vector<std::size_t> turns(std::size_t count, int round, int rounds);

}  // namespace shakedown::training
