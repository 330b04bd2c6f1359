// bin/train --layers and --kernels: trains some steps with an event after each call, and prints
// where their time goes.
#pragma once

#include "common/error.hpp"
#include "training/programs/run.hpp"

namespace shakedown::training {

struct LayersSettings {
  int iterations = 100;
  int warmup = 20;
  double learning_rate = 0.1;
  bool layers = false;   // print and record times by layer
  bool kernels = false;  // by kernel
};

/// Writes the records and prints what rank 0 measured. Throws UsageError where rank 0 computes
/// nothing, FailError when the loss is not finite any more. Collective.
ExitCode run_layers(const Run& run, const LayersSettings& settings);

}  // namespace shakedown::training
