// --invariant: a training whose bits do not depend on the number of ranks.
#pragma once

#include <optional>
#include <string>

#include "training/measure/throughput.hpp"
#include "training/programs/run.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {

/// Declares --invariant, which sets those of the other options that it decides.
void declare_invariant(OptionSet& options, TrainOptions& values);

/// A rank's shards are its micro-batches; nothing without --invariant. Throws UsageError where
/// ranks cannot have the same number of them.
void divide_shards(TrainOptions& options, int ranks);

/// How the batch is divided, and the bytes that the tree sends; "" without --invariant.
std::string text_of_shards(const Engine& engine);

/// Images/s of the same steps by plain all-reduce, for comparison; none without --invariant. The
/// engine is at the start again. Collective.
std::optional<double> rate_without_tree(const Run& run, TimingOptions timing);
std::string text_of_tree_cost(const Throughput& measured, double rate_without);

}  // namespace shakedown::training
