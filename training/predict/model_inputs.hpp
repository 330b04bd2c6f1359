// The inputs of a step model, as a job measured them without an exchange.
#pragma once

#include <vector>

#include "training/measure/breakdown.hpp"
#include "training/predict/link_sweep.hpp"
#include "training/predict/overlap.hpp"

namespace shakedown::training {

/// Measurements of `none` on a number of ranks, in addition to its breakdown.
struct ModelInputs {
  std::vector<ReadyGradient> gradients;
  double backward_ms = 0;
  double sent_bytes_factor = 1;  // bytes that travel for one of float32
  double input_bytes_per_image = 0;
  MeasuredLinks links;
};
/// All but the links.
ModelInputs model_inputs(Engine& engine, const Trace& steps);

}  // namespace shakedown::training
