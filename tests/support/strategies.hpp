// Small trainings of every strategy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support.hpp"
#include "tests/support/network.hpp"
#include "training/data/batches.hpp"
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

/// Of a network smaller than any known, of batches of 4 images of 32 x 32.
training::EngineSettings smallest_settings(const std::string& strategy);

training::EngineSettings settings_of(Precision precision, const std::string& strategy);

/// An engine of these settings, and batches of this rank's own.
struct EngineRig {
  explicit EngineRig(const training::EngineSettings& settings,
                     BackendKind kind = backends().front());

  Backend backend;
  training::Engine engine;
  std::unique_ptr<training::BatchSource> batches;
};

/// Batch of a shard in a step: the same wherever it is computed.
void load(Network& network, int shard, int step);

/// Its buckets are several in this small network.
training::StrategyOptions small_buckets_of(const std::string& strategy);

/// With this program's ranks.
bool can_run(const training::StrategyEntry& entry, BackendKind backend);

/// With the options that make another exchange of it.
std::vector<training::StrategyOptions> exchanging_strategies(BackendKind backend);

}  // namespace shakedown::test
