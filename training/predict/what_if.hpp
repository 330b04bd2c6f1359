// Predicts the time of a training step elsewhere: from a job's own measurements to other
// strategies, rank counts, batches, buckets and links. Numbers in, numbers out.
#pragma once

#include <string>
#include <vector>

#include "training/predict/link_cost.hpp"
#include "training/predict/overlap.hpp"

namespace shakedown::training {

/// Forward and backward of one micro-batch on one rank that exchanges nothing.
struct BatchTime {
  int batch_size = 0;
  double compute_ms = 0;
};

/// Compute time as a function of the batch: lines between the measured batches, the nearest of
/// which goes on beyond them; of a single batch, constant images/s.
class ComputeTime {
 public:
  struct Estimate {
    double ms = 0;
    bool extrapolated = false;
  };
  /// At least one, each batch once, in any order. Throws InternalError.
  explicit ComputeTime(std::vector<BatchTime> measured);
  Estimate at(int batch_size) const;

 private:
  std::vector<BatchTime> measured_;  // ascending
};

/// Measurements of a job.
struct MeasuredStep {
  std::vector<BatchTime> compute;        // as ComputeTime expects them
  std::vector<ReadyGradient> gradients;  // in the order in which backward finishes them
  double backward_ms = 0;                // to backward's end, where ready_ms are from
  int ready_batch_size = 0;              // the batch of ready_ms and backward_ms
  double optimizer_ms = 0;               // update of all parameters
  double interference = 0;           // by which compute slows while an exchange runs: 0.1 is 10 %
  double average_ms_per_byte = 0;    // a server's, to average gradients: of each rank's that it has
  double input_bytes_per_image = 0;  // as data-parallel scatters them
};

/// The configuration to predict.
struct Scenario {
  int world_size = 1;
  int batch_size = 1;          // per rank that computes, of a micro-batch
  int accumulate = 1;          // micro-batches an update
  LinkCost ring;               // of ring exchanges
  LinkCost star;               // of sends and receives between one rank and the others
  double small_bucket_mb = 1;  // MiB of float32, as DDP counts; of the small bucket
  double bucket_cap_mb = 25;   // MiB
  SmallBucket small_bucket = SmallBucket::first;
  double gradient_bytes_factor = 1;  // sent for a byte of float32 gradient: 0.5 in float16
  double weight_bytes_factor = 1;    // the same for weights
  bool overlap = true;               // exchanges may go on while a rank computes
};

/// step = compute + exposed + interference + optimizer.
struct Prediction {
  int ranks_computing = 0;
  double compute_ms = 0;       // of all micro-batches
  double hidden_ms = 0;        // of the exchange
  double exposed_ms = 0;       // of the exchange, with a server's averages
  double interference_ms = 0;  // MeasuredStep::interference of the hidden part
  double optimizer_ms = 0;
  double step_ms = 0;
  double images_per_s = 0;    // of all ranks that compute
  double efficiency = 0;      // images/s over world_size times a single rank's
  bool extrapolated = false;  // the batch lies outside the measured ones
};

/// Predicts to first order: what overlaps slows compute down, but gradients do not become ready
/// later for it; ranks are equally fast; alpha and bandwidth are the same at every world size.
class StepModel {
 public:
  /// Throws InternalError where a time is negative or nothing was measured.
  explicit StepModel(MeasuredStep measured);

  /// Throws UsageError for an unknown strategy, InternalError for an asynchronous one or one that
  /// needs more ranks.
  Prediction predict(const std::string& strategy, const Scenario& scenario) const;

 private:
  MeasuredStep measured_;
  ComputeTime compute_;
};

/// The strategies that can be predicted.
std::vector<std::string> predicted_strategies();

}  // namespace shakedown::training
