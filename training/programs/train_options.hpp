// Command-line options of bin/train.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "common/record.hpp"
#include "training/checkpoint/checkpoints.hpp"
#include "training/data/source.hpp"
#include "training/data/transform.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/step_options.hpp"
#include "training/step/schedule.hpp"

namespace shakedown {

class OptionSet;

}  // namespace shakedown

namespace shakedown::training {

struct DataOptions : SourceOptions {
  TransformOptions transform;
};

struct TrainOptions : StepOptions {
  std::string recipe;
  BackendOptions backend;
  ScheduleOptions schedule;
  std::string norm_stats = "first";
  CheckpointOptions checkpoints;
  DataOptions data;
  InputOptions input;
  EvaluationOptions evaluation;
  DetectorOptions detector;
  std::int64_t started_ms = unix_ms();  // the program
  int iterations = 100;
  int warmup = 20;
  double warmup_seconds = -1;  // -1: the backend's
  int epochs = 0;              // 0: the throughput run, or an evaluation
  bool certificate = true;
  std::string pack;
  std::string save;
  std::string record;
  std::string trace;
  bool describe = false;
  bool layers = false;
  bool kernels = false;
  bool loader_only = false;
  bool max_batch = false;
  int max_batch_limit = 0;  // 0: the backend's
  bool self_test = false;
};

void declare_options(OptionSet& options, TrainOptions& values);
/// Replaces --data-dir by the training and validation data that it has: see find_data.
void find_data(TrainOptions& options);
/// Declares the options of a step and of its measurement, which bin/compare shares.
void declare_step_options(OptionSet& options, TrainOptions& values);

/// `warmup_seconds` with the backend's default resolved.
double warmup_seconds_of(const TrainOptions& options, BackendKind kind);

}  // namespace shakedown::training
