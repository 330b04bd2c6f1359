// bin/train --layers and --kernels: trains some steps with an event behind each call, and tells
// where their time goes.
#pragma once

#include "common/error.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/programs/train_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// Writes the records and tells people what rank 0 measured. Throws UsageError where rank 0
/// computes nothing, FailError when the loss is not finite any more. Every rank calls it.
ExitCode run_layers(Engine& engine, BatchSource& batches, const TrainOptions& options,
                    const Json& identity, const MpiSession& session, Record& record);

}  // namespace shakedown::training
