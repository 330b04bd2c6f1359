// The two runs of bin/train: throughput (the certificate, the timed steps, and where their time
// goes), and training over epochs.
#pragma once

#include "common/exit_code.hpp"
#include "training/programs/run.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

/// Certifies, measures, writes records and files, and prints a summary. Returns `fail` where the
/// certificate failed; throws FailError when the loss is not finite any more, or nothing was
/// trained. Weights that are not finite are not saved. Collective.
ExitCode run_throughput(const Run& run, const TrainOptions& options, const OutputFiles& files);

/// `set` declared the options. Collective. Ends and throws as train_epochs, and UsageError where a
/// file cannot be written.
ExitCode run_training(const Run& run, const TrainOptions& options, const OptionSet& set,
                      const Dataset& dataset, TrainingData& data, const OutputFiles& files);

}  // namespace shakedown::training
