// bin/train's throughput run: the certificate, the timed steps, and where their time goes.
#pragma once

#include "common/error.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/train_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

/// bin/compare's too.
ThroughputSettings throughput_settings(const TrainOptions& options, BackendKind kind);

/// Writes the records, and weights and trace if they are asked for, and tells people. Returns
/// `fail` where the certificate failed; throws FailError when the loss is not finite any more, or
/// nothing was trained. Weights that are not finite are not saved.
/// Every rank calls it.
ExitCode run_throughput(Engine& engine, BatchSource& batches, const TrainOptions& options,
                        const Json& identity, const Metadata& metadata, const MpiSession& session,
                        Record& record);

/// The weights as they are, if they go to --save; else none. Every rank calls it.
std::vector<Tensor> state_to_save(const TrainOptions& options, Engine& engine);
/// Writes them there.
void save_if_asked(const TrainOptions& options, const std::vector<Tensor>& state,
                   const Metadata& metadata, const MpiSession& session);

/// Traces steps into the file, and goes back to the start. Every rank calls it.
void trace_beginning(Engine& engine, BatchSource& batches, const TrainOptions& options,
                     const MpiSession& session);

}  // namespace shakedown::training
