// The two runs of bin/train: throughput (the certificate, the timed steps, and where their time
// goes), and training over epochs.
#pragma once

#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/measure/records.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// The context of each kind of run.
struct Run {
  const TrainOptions& options;
  Engine& engine;
  BatchSource& batches;
  const Identity& identity;
  const MpiSession& session;
  Record& record;
  const OptionSet* set = nullptr;  // that declared the options
  TrainingData* data = nullptr;    // of the batches; null: they are made otherwise

  /// Writes a record of this configuration.
  void write(const char* kind, const Json& fields) const;
  /// How the input is set up, for a record.
  Json input() const;
};

/// Certifies, measures, writes records and files, and prints a summary. Returns `fail` where the
/// certificate failed; throws FailError when the loss is not finite any more, or nothing was
/// trained. Weights that are not finite are not saved. Collective.
ExitCode run_throughput(const Run& run);

/// Collective. Ends and throws as train_epochs, and UsageError where a file cannot be written.
ExitCode run_training(const Run& run);

// What a run of bin/train makes of its options.

/// Where a training continues, `--decoder auto` is the checkpoint's, however many workers a rank
/// has now. Collective.
void take_saved_decoder(TrainOptions& options, const MpiSession& session);

/// What is not as the options request: another precision, nothing that validates; or "".
std::string remarks_of(const TrainOptions& options, BackendKind backend);

/// engine_settings() of the step, plus what a run of bin/train needs.
EngineSettings run_settings(const TrainOptions& options, const Backend& backend, int classes);
/// Throws UsageError where two options name one file to be written, or to be read as --weights.
void check_files(const TrainOptions& options);
/// Throws where one of these files cannot be written, or has no room for the weights.
void check_outputs(const TrainOptions& options, const ParameterTable& table);
/// Batches per rank of a throughput run; 0 of another.
long batches_needed(const TrainOptions& options);

/// The settings that decide what a training computes, for its checkpoints: of the options and of
/// what follows from them, the files and the number of ranks.
RunFacts run_facts(const Run& run);

// bin/train --loader-only: the rate of the input alone.

/// Takes batches on the device as a network would, and drops them. Writes a "loader" record and
/// prints a summary. Collective.
ExitCode run_loader(const TrainOptions& options, const Dataset& dataset, const Backend& backend,
                    const MpiSession& session, Record& record);

// bin/train --pack: writes the training folder as one packed file.

/// Rank 0 writes while the others wait.
ExitCode pack_images(const TrainOptions& options, MpiSession& session);

}  // namespace shakedown::training
