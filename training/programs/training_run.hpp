// A training run: epochs, what is written after each, and the trained weights.
#pragma once

#include <nlohmann/json.hpp>

#include "training/programs/epochs.hpp"
#include "training/programs/run.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

struct TrainingSettings {
  EpochSettings epochs;
  Json fields;  // of the `training` record
};

/// Collective. Ends and throws as train_epochs, and UsageError where a file cannot be written.
ExitCode run_training(const Run& run, TrainingData& data, const TrainingSettings& settings,
                      const OutputFiles& files);

}  // namespace shakedown::training
