// All-reduce of --invariant: the same bits on any number of ranks.
#pragma once

#include <memory>

#include "training/exchange/strategy.hpp"

namespace shakedown::training {

/// Each micro-batch is one of options.invariant shards of the global batch, in the order of the
/// ranks. Their gradients, and the running statistics that each leaves, become their means in
/// float32, by one tree over the shards.
std::unique_ptr<Strategy> make_invariant_all_reduce(const StrategyContext& context);

}  // namespace shakedown::training
