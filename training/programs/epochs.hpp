// Training over epochs of a data folder, with validation.
#pragma once

#include <optional>

#include "training/checkpoint/checkpoints.hpp"
#include "training/programs/run.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {

struct EpochSettings {
  int epochs = 1;
  double learning_rate = 0.1;
  ScheduleOptions schedule;
  CheckpointSettings checkpoints = {};
};

/// What an epoch's training and its validation gave, over all ranks.
struct TrainedEpoch {
  double loss = 0;
  double top1 = 0;
  double learning_rate = 0;  // of the last step
  double images_per_s = 0;
  double seconds = 0;
  InputTimes input;                 // over_ranks()
  std::optional<double> grad_norm;  // of the last step, before clipping; where the update needs it
  int skipped_steps = 0;            // since the start
  long bad_images = 0;              // replaced, since the start; each counts once
};
struct Validation {
  double loss = 0;
  double top1 = 0;
  double top5 = 0;
  std::int64_t images = 0;
  int rank = 0;  // whose statistics normalised
};
struct EpochResult {
  int epoch = 0;  // 0: only evaluated
  std::optional<TrainedEpoch> trained;
  std::optional<Validation> validated;
  std::optional<Validation> validated_average;  // of the weights' average, with --ema
  double seconds = 0;                           // both
};

/// Trains on run.batches and validates, from where the checkpoint left off that there may be;
/// prints one line and writes one "epoch" record per epoch. `validation` may be null. With 0 epochs
/// it only validates. Returns 5 when a signal stopped it and its state was written, 3 when a
/// checkpoint could not be. Throws FailError when the loss is not finite, or every step of an epoch
/// was skipped. Collective.
ExitCode train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                      const EpochSettings& settings);

}  // namespace shakedown::training
