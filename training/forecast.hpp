// What bin/compare says of what it did not measure: other numbers of ranks, buckets, batches and
// links, by the step model fitted to what it did, whose own error on that stands beside it.
#pragma once

#include <string>
#include <vector>

#include "training/bucket_plan.hpp"
#include "training/link_sweep.hpp"
#include "training/tracing.hpp"

namespace shakedown {

struct Job;
struct Result;

/// Of `none` on some ranks: what a model is made of, beside the breakdown.
struct ModelInputs {
  std::vector<ReadyGradient> gradients;
  double backward_ms = 0;
  double sent_bytes_factor = 1;  // bytes that travel for one of float32
  double input_bytes_per_image = 0;
  MeasuredLinks links;
};
/// All but the links.
ModelInputs model_inputs(Engine& engine, const Trace& steps);

/// For each model and precision, of the batches that were measured with it on the most ranks:
/// writes the records and returns what people read. Rank 0 alone.
std::string forecast(const std::vector<Result>& results, const Job& job);

}  // namespace shakedown
