// Command-line options of bin/train.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "common/record.hpp"
#include "training/checkpoint/checkpoints.hpp"
#include "training/data/source.hpp"
#include "training/measure/throughput.hpp"
#include "training/programs/epochs.hpp"
#include "training/programs/step_options.hpp"
#include "training/step/schedule.hpp"

namespace shakedown {

class OptionSet;

}  // namespace shakedown

namespace shakedown::training {

struct TrainOptions : StepOptions {
  std::string recipe;
  BackendOptions backend;
  ScheduleOptions schedule;
  CheckpointOptions checkpoints;
  DataOptions data;
  EvaluationOptions evaluation;
  DetectorOptions detector;
  TimingOptions timing;
  std::int64_t started_ms = unix_ms();  // the program
  int epochs = 0;                       // 0: the throughput run, or an evaluation
  bool certificate = true;
  std::string pack;
  std::string save;
  std::string record;
  std::string trace;
  bool describe = false;
  bool layers = false;
  bool loader_only = false;
  int max_batch = 0;  // images per rank that are tried at most; 0: no search
  bool self_test = false;
};

void declare_options(OptionSet& options, TrainOptions& values);
/// Replaces --data-dir by the training and validation data that it has: see find_data.
void find_data(TrainOptions& options);
/// Declares the options of a step and of its measurement, which bin/compare shares.
void declare_step_options(OptionSet& options, TrainOptions& values);

}  // namespace shakedown::training
