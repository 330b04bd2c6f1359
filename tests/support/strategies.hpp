// Small trainings of every strategy.
#pragma once

#include <string>
#include <vector>

#include "tests/support.hpp"
#include "tests/support/network.hpp"
#include "training/step/engine.hpp"

namespace shakedown::test {

constexpr int kBatch = 8;
constexpr int kClasses = 10;

/// Pixels per side of an image. The tolerances of float16 were measured with 64; 32 take a CPU a
/// quarter of the time.
int image_size();

struct Case {
  BackendKind backend;
  Precision precision;
};

/// On every backend, in the precisions that it is fast in.
std::vector<Case> cases();

training::EngineSettings settings_of(Precision precision, const std::string& strategy);

/// Of a network smaller than any known.
training::EngineSettings small_settings(const std::string& strategy);

/// Batch of a shard in a step: the same wherever it is computed.
void load(Network& network, int shard, int step);

/// Its buckets are several in this small network.
training::StrategyOptions small_buckets_of(const std::string& strategy);

/// With this program's ranks.
bool can_run(const training::StrategyEntry& entry, BackendKind backend);

/// With the options that make another exchange of it.
std::vector<training::StrategyOptions> exchanging_strategies(BackendKind backend);

}  // namespace shakedown::test
