// How many bytes each strategy's exchange takes in theory, to hold measurements against.
#pragma once

#include <string>
#include <vector>

#include "common/types.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {

struct StrategyOptions;

/// What a rank has to exchange in a step; bytes, as they travel.
struct StepVolume {
  double gradients = 0;
  double weights = 0;
  // Of the weights, in the network's first two blocks, and in its last two.
  double first_blocks = 0;
  double last_blocks = 0;
  int accumulate = 1;  // micro-batches
};
/// Of a network whose gradients travel as `gradients` and its weights as `weights`.
StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate);

struct ExchangeVolume {
  const char* strategy;
  /// Whether it exchanges buckets, whose cap then is part of the configuration.
  bool buckets;
  /// Bytes that `rank` of `ranks` sends in a step, of gradients and weights. Collectives count as
  /// their bandwidth-optimal rings (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009): an
  /// all-reduce 2 (ranks - 1) / ranks times its buffer, a reduce-scatter or all-gather half of
  /// that.
  double (*bytes_sent)(const StepVolume& step, int ranks, int rank);
};

/// One for each strategy that there is, or is designed.
const std::vector<ExchangeVolume>& exchange_volumes();
/// Throws InternalError where there is none.
const ExchangeVolume& find_volume(const std::string& strategy);

/// What the strategy sends with these options.
double bytes_sent(const StrategyOptions& options, const StepVolume& step, int ranks, int rank);

}  // namespace shakedown::training
