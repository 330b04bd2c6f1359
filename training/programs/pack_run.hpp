// bin/train --pack: writes the training folder as one packed file.
#pragma once

#include "common/mpi_session.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {

/// Rank 0 writes while the others wait.
ExitCode pack_images(const TrainOptions& options, MpiSession& session);

}  // namespace shakedown::training
