// The options of a training step: those that bin/compare sweeps over.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "resnet/model_options.hpp"
#include "resnet/network.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct StepOptions {
  ModelOptions model;
  StrategyOptions strategy;
  OptimizerOptions optimizer;
  EmaOptions ema;
  int batch_size = 64;
  int global_batch = 0;  // 0: batch_size per rank
  int accumulate = 1;
  std::string graph = "auto";
  int seed = 0;
};

/// Images per rank and micro-batch, for this many computing ranks. Throws UsageError where
/// --global-batch cannot be divided.
int batch_size_of(const StepOptions& options, int ranks);

/// Settings that follow from the options, the backend and the classes of the data.
EngineSettings engine_settings(const StepOptions& options, const Backend& backend, int classes);

}  // namespace shakedown::training

namespace shakedown {

// --check-neighbour and --inject-fault of bin/train.

class OptionSet;

}  // namespace shakedown

namespace shakedown::training {

struct DetectorOptions {
  int check_neighbour = 0;   // updates from one check to the next; 0: none
  std::string output = ".";  // folder of capsules
  std::string fault;         // --inject-fault
};
void declare_options(OptionSet& options, DetectorOptions& values);

struct DetectorSettings {
  DetectorOptions options;
  const OptionSet* all_options = nullptr;  // for capsules; null: there is no check
};

}  // namespace shakedown::training
