// Advice by the step model: what to change, and which strategy wins where.
#pragma once

#include <string>
#include <vector>

#include "training/predict/what_if.hpp"

namespace shakedown::training {

/// The fastest strategy of those that run on the scenario's ranks; of equals the first listed.
struct Winner {
  std::string strategy;
  std::string second;  // "" where only one runs
  double margin = 0;   // winner's images/s over the second's, less 1; 0 without a second
};
/// Leave "none" out: it wins everywhere.
Winner find_winner(const StepModel& model, const Scenario& scenario,
                   const std::vector<std::string>& strategies);

struct Change {
  std::string text;
  Scenario scenario;
};
/// Larger batches up to `largest_batch_size`, float16 gradients where they are not yet, gradients
/// compressed to a quarter, a faster path, accumulation, and of the bucket caps and orders that
/// people try, the fastest ones for ddp.
std::vector<Change> usual_changes(const StepModel& model, const Scenario& base,
                                  int largest_batch_size);

struct Advice {
  std::string text;
  double gain_percent = 0;  // of images/s
  bool extrapolated = false;
};
/// The changes that would make `strategy` faster, the best first.
std::vector<Advice> advise(const StepModel& model, const std::string& strategy,
                           const Scenario& base, const std::vector<Change>& changes);

}  // namespace shakedown::training
