// Training over epochs of a data folder, with validation.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "training/programs/evaluation.hpp"
#include "training/programs/run.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {

/// What an epoch's training and its validation gave, over all ranks.
struct TrainedEpoch {
  double loss = 0;
  double top1 = 0;
  double learning_rate = 0;  // of the last step
  double images_per_s = 0;
  double seconds = 0;
  InputTimes input;                            // over_ranks()
  int skipped_steps = 0;                       // since the start
  std::vector<double> peak_memory_bytes = {};  // what was allocated, per rank
};
struct EpochResult {
  int epoch = 0;  // from 1; 0: only evaluated
  std::optional<TrainedEpoch> trained;
  std::optional<Validation> validated;
  double seconds = 0;  // both
};

struct EpochSettings {
  int epochs = 1;
  double learning_rate = 0.1;
  ScheduleOptions schedule;
  std::function<void(const EpochResult&)> after_epoch = [](const EpochResult&) {};  // on rank 0
};

/// Trains on run.batches and validates; prints one line and writes one "epoch" record per epoch.
/// `validation` may be null. Throws FailError when the loss is not finite, or every step of an
/// epoch was skipped. Collective.
void train_epochs(const Run& run, long batches_per_epoch, BatchSource* validation,
                  const EpochSettings& settings);

}  // namespace shakedown::training
