// What to change, and where which strategy wins, by the step model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "training/predict/what_if.hpp"

namespace shakedown::training {

/// The fastest strategy at one batch and bandwidth.
struct Winner {
  int batch_size = 0;
  double bytes_per_s = 0;
  std::string strategy;
  std::string second;         // "" where only one strategy runs
  double margin = 0;          // winner's images/s over the second's, less 1; 0 without a second
  bool extrapolated = false;  // the batch lies outside the measured ones
};
/// Batches in the outer order, bandwidths in the inner; ring and star both get the cell's
/// bandwidth. Of equals the first listed wins. Strategies that need more ranks than the scenario
/// has are passed over. Leave "none" out: it wins everywhere.
/// Throws UsageError where no strategy is left.
std::vector<Winner> map_winners(const StepModel& model, const Scenario& base,
                                const std::vector<std::string>& strategies,
                                const std::vector<int>& batch_sizes,
                                const std::vector<double>& bandwidths_bytes_per_s);

struct Change {
  std::string text;
  Scenario scenario;
};
/// Larger batches up to `largest_batch_size`, float16 with its measured speed-up of compute, or
/// where that was not measured, float16 gradients alone; gradients compressed to a quarter; a
/// faster path; accumulation. Halved gradients are left out where the base has them.
std::vector<Change> usual_changes(const Scenario& base, int largest_batch_size,
                                  std::optional<double> fp16_speedup);

/// Of the bucket caps and orders that people try, those by which ddp would be fastest: few buckets
/// hold compute up for less long, many hide better. The base's own where nothing is faster.
Change best_buckets(const StepModel& model, const Scenario& base);

struct Advice {
  std::string text;
  double gain_percent = 0;  // of images/s
  Prediction prediction;
};
/// The changes that would make `strategy` faster, the best first.
std::vector<Advice> advise(const StepModel& model, const std::string& strategy,
                           const Scenario& base, const std::vector<Change>& changes);

}  // namespace shakedown::training
