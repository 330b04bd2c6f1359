// bin/train --loader-only: the rate of the input alone.
#pragma once

#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"

namespace shakedown::training {

/// Takes batches on the device as a network would, and drops them. Writes a "loader" record and
/// prints a summary. Collective.
ExitCode run_loader(const TrainOptions& options, const Dataset& dataset, const Backend& backend,
                    const MpiSession& session, Record& record);

// bin/train --pack: writes the training folder as one packed file.

/// Rank 0 writes while the others wait.
ExitCode pack_images(const TrainOptions& options, MpiSession& session);

}  // namespace shakedown::training
