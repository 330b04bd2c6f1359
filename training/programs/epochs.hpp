// Training over epochs of a data folder, with validation.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "training/checkpoint/checkpoints.hpp"
#include "training/data/source.hpp"
#include "training/programs/run.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {

// Validation during a training run, and --evaluate: loss, top-1, top-5 and logits of --weights on
// --val-dir.

struct Validation {
  double loss = 0;
  double top1 = 0;
  double top5 = 0;
  std::int64_t images = 0;
  std::optional<int> rank = {};  // whose statistics normalised; none: their average
};

/// All ranks that compute validate the same weights, each on a part of the images. `go_on` runs on
/// every rank after each batch, and returns the same on all: where it is false the validation is
/// abandoned, and there is none. Collective.
std::optional<Validation> validate(Engine& engine, BatchSource& batches, const MpiSession& session,
                                   const std::function<bool()>& go_on);

/// Validates --weights on all images of `source`, which `batches` reads; prints the result, writes
/// an "epoch" record of epoch 0 and the file of logits. Throws FailError where the loss is not
/// finite, UsageError where the weights have no classifier for these classes. Collective.
ExitCode evaluate(const Run& run, BatchSource& batches, const ImageSource& source);

/// The rows of an N x `width` matrix in the order of the images, from the parts of `ranks` ranks:
/// rank r has the rows r, r + ranks, ...; every part has as many rows as the longest.
std::vector<float> interleaved(const std::vector<float>& parts, std::size_t rows, std::size_t width,
                               std::size_t ranks);

/// The results of an epoch's training and validation, over all ranks.
struct TrainedEpoch {
  double loss = 0;
  double top1 = 0;
  double learning_rate = 0;  // of the last step
  double images_per_s = 0;
  double seconds = 0;
  InputTimes input = {};                       // over_ranks()
  std::optional<double> grad_norm = {};        // of the last step, before clipping; if it is needed
  int skipped_steps = 0;                       // since the start
  std::int64_t images_dropped = 0;             // of the epoch: they fill no update
  long bad_images = 0;                         // replaced, since the start; each counts once
  std::vector<double> peak_memory_bytes = {};  // what was allocated, per rank
};
struct EpochResult {
  int epoch = 0;  // from 1; 0: only evaluated
  std::optional<TrainedEpoch> trained;
  std::optional<Validation> validated;
  std::optional<Validation> validated_average;  // of the weights' average, with --ema
  double seconds = 0;                           // both
  std::int64_t end_ms = 0;                      // Unix time
};
Json record_of(const EpochResult& result);

struct TrainingEnd {
  ExitCode code = ExitCode::pass;  // 5: a signal stopped it, its state is saved; 3: it is not, or a
                                   // checkpoint was lost
  bool complete = true;            // all epochs
};

/// Trains on run.batches and validates, from where the checkpoint left off that there may be;
/// prints one line and writes one "epoch" record per epoch. `validation` may be null. Throws
/// FailError when the loss is not finite, or every step of an epoch was skipped. Collective.
TrainingEnd train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                         const CheckpointSettings& checkpoints = {});

}  // namespace shakedown::training
