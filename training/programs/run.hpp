// The context of each kind of run of bin/train.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "common/output_file.hpp"
#include "common/record.hpp"
#include "resnet/tensor_file.hpp"
#include "training/checkpoint/checkpoint_file.hpp"
#include "training/data/batches.hpp"
#include "training/data/loader.hpp"
#include "training/data/source.hpp"
#include "training/measure/records.hpp"
#include "training/programs/train_options.hpp"
#include "training/programs/training_data.hpp"
#include "training/step/engine.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {

struct Run {
  Engine& engine;
  BatchSource& batches;
  const Identity& identity;
  const MpiSession& session;
  Record& record;
  InputSetup input = {};
  std::function<long()> bad_images = nullptr;  // of training so far, on all ranks; collective
  DetectorSettings detector = {};

  /// Writes a record of this configuration.
  void write(const char* kind, const Json& fields) const;
};

// The files that a run of bin/train leaves next to its record.

/// Empty paths: none.
struct OutputFiles {
  std::string save;    // weights, .safetensors
  std::string trace;   // of some steps, for Perfetto
  std::string logits;  // of --evaluate, .safetensors
  Metadata metadata;   // of the weights
};

/// Throws UsageError where one cannot be written.
void check_outputs(const OutputFiles& files);

/// The weights as they are, if they are to be saved; else none. Collective.
std::vector<Tensor> state_to_save(const OutputFiles& files, Engine& engine);
/// Writes them, on rank 0.
void save(const OutputFiles& files, const std::vector<Tensor>& state, const MpiSession& session);

/// Writes the trace, on rank 0, if it was requested.
void write_trace(const OutputFiles& files, const Run& run, const Trace& trace);
/// Traces the first steps of a training, if requested, and restarts it. Collective.
void trace_beginning(const OutputFiles& files, const Run& run, double learning_rate);

// What a run of bin/train makes of its options.

/// Where a training continues, `--decoder auto` is the checkpoint's, however many workers a rank
/// has now. Collective.
void take_saved_decoder(TrainOptions& options, const MpiSession& session);

/// What is not as the options request: another precision, nothing that validates; or "".
std::string remarks_of(const TrainOptions& options, BackendKind backend);

/// engine_settings() of the step, plus what a run of bin/train needs.
EngineSettings run_settings(const TrainOptions& options, const Backend& backend, int classes);
/// Every file that an option names to be written.
std::vector<Output> outputs_of(const TrainOptions& options);
OutputFiles output_files(const TrainOptions& options, const Dataset& dataset);
/// Batches per rank of a throughput run; 0 of another.
long batches_needed(const TrainOptions& options);

}  // namespace shakedown::training

namespace shakedown {

// The settings that decide what a run of bin/train computes, for its checkpoints.

class OptionSet;

}  // namespace shakedown

namespace shakedown::training {

/// Of the options and of what follows from them, the files and the number of ranks.
RunFacts run_facts(const OptionSet& options, const EngineSettings& settings, int ranks_computing,
                   const ImageSource& images, const InputSetup& input);

}  // namespace shakedown::training
