// bin/train --loader-only: the rate of the input alone.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

struct LoaderRunSettings {
  EngineSettings step;  // whose batches these are
  InputSettings input;
  int iterations = 100;  // timed batches
  int warmup = 20;       // batches before them
};

/// Takes batches on the device as a network would, and drops them. Writes a "loader" record and
/// prints a summary. Collective.
ExitCode run_loader(const LoaderRunSettings& settings, const Dataset& dataset,
                    const Backend& backend, const MpiSession& session, Record& record);

// bin/train --pack: writes the training folder as one packed file.

/// Rank 0 writes while the others wait.
ExitCode pack_images(const TrainOptions& options, MpiSession& session);

}  // namespace shakedown::training
