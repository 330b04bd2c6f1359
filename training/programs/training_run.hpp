// A training run: epochs, what is written after each, and the trained weights.
#pragma once

#include "training/programs/history.hpp"
#include "training/programs/mllog.hpp"
#include "training/programs/run.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

struct TrainingSettings {
  EpochSettings epochs;
  HistoryOptions history;
  MlLogOptions mllog;
  MlLogFacts facts;
};

/// Collective. Ends and throws as train_epochs, and UsageError where a file cannot be written.
ExitCode run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                      const OutputFiles& files);

}  // namespace shakedown::training
