// The settings of each part of a run, from the options of bin/train.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/output_file.hpp"
#include "training/programs/describe.hpp"
#include "training/programs/loader_run.hpp"
#include "training/programs/run.hpp"
#include "training/programs/self_test.hpp"
#include "training/programs/throughput_run.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"
#include "training/programs/training_run.hpp"

namespace shakedown::training {

/// Where a training continues, `--decoder auto` is the checkpoint's, however many workers a rank
/// has now. Collective.
void take_saved_decoder(TrainOptions& options, const MpiSession& session);

/// What is not as the options request: another precision, nothing that validates; or "".
std::string remarks_of(const TrainOptions& options, BackendKind backend);

/// engine_settings() of the step, plus what a run of bin/train needs.
EngineSettings run_settings(const TrainOptions& options, const Backend& backend, int classes);
/// Of the options, those of `metric` lines that an Identity lacks; none: there is no record.
Conditions conditions_of(const TrainOptions& options);
/// `set` declared the options.
TrainingSettings training_settings(const TrainOptions& options, const OptionSet& set,
                                   const Engine& engine, const Dataset& dataset,
                                   TrainingData& data);
/// Every file that an option names to be written.
std::vector<Output> outputs_of(const TrainOptions& options);
OutputFiles output_files(const TrainOptions& options, const Dataset& dataset);
/// Batches per rank of a throughput run; 0 of another.
long batches_needed(const TrainOptions& options);

/// Calls `run` with these options; with --max-batch at the largest batch that fits.
ExitCode at_requested_batch(const TrainOptions& options, int classes, Backend& backend,
                            const MpiSession& session,
                            const std::function<ExitCode(const TrainOptions&)>& run);

}  // namespace shakedown::training
