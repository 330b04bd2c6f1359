// Command-line options of bin/train, and what bin/compare shares of them.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "common/record.hpp"
#include "training/checkpoint/checkpoints.hpp"
#include "training/data/source.hpp"
#include "training/measure/throughput.hpp"
#include "training/step/engine.hpp"
#include "training/step/schedule.hpp"

namespace shakedown::training {

struct DetectorOptions {
  int check_neighbour = 0;   // updates from one check to the next; 0: none
  std::string output = ".";  // folder of capsules
  std::string fault;         // --inject-fault
};
void declare_options(OptionSet& options, DetectorOptions& values);

struct TrainOptions : StepOptions {
  std::string recipe;
  BackendOptions backend;
  ScheduleOptions schedule;
  CheckpointOptions checkpoints;
  DataOptions data;
  DetectorOptions detector;
  TimingOptions timing;
  std::int64_t started_ms = unix_ms();  // the program
  int epochs = 0;                       // 0: the throughput run, or an evaluation
  bool evaluate = false;
  bool certificate = true;
  std::string pack;
  // Files to write; empty: none.
  std::string save;    // weights, .safetensors
  std::string logits;  // of --evaluate, .safetensors
  std::string record;
  std::string trace;  // of some steps, for Perfetto
  bool describe = false;
  bool layers = false;
  bool loader_only = false;
  int max_batch = 0;  // images per rank that are tried at most; 0: no search
  bool self_test = false;
};

/// --max-batch without a number: beyond any device.
inline constexpr int kMostBatch = 1 << 20;

void declare_options(OptionSet& options, TrainOptions& values);
/// Replaces --data-dir by the training and validation data that it has: see find_data.
void find_data(TrainOptions& options);
/// Declares the options of a step and of its measurement, which bin/compare shares.
void declare_step_options(OptionSet& options, TrainOptions& values);

/// Images per rank and micro-batch, for this many computing ranks. Throws UsageError where
/// --global-batch cannot be divided.
int batch_size_of(const StepOptions& options, int ranks);

/// A rank's shards are its micro-batches; nothing without --invariant. Throws UsageError where
/// ranks cannot have the same number of them.
void divide_shards(TrainOptions& options, int ranks);

/// With what follows from the backend and the classes of the data.
EngineSettings engine_settings(const StepOptions& options, const Backend& backend, int classes);

}  // namespace shakedown::training
