// Command-line options of bin/train.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "training/data/transform.hpp"
#include "training/programs/evaluation.hpp"
#include "training/programs/history.hpp"
#include "training/programs/input_options.hpp"
#include "training/programs/mllog.hpp"
#include "training/programs/step_options.hpp"
#include "training/step/schedule.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct DataOptions {
  std::string train_dir;  // empty: synthetic
  std::string val_dir;
  std::string augment = "auto";
  bool synthetic() const { return train_dir.empty(); }
};

struct TrainOptions : StepOptions {
  BackendOptions backend;
  ScheduleOptions schedule;
  DataOptions data;
  InputOptions input;
  EvaluationOptions evaluation;
  HistoryOptions history;
  MlLogOptions mllog;
  int iterations = 100;
  int warmup = 20;
  double warmup_seconds = -1;  // -1: the backend's
  int epochs = 0;              // 0: the throughput run, or an evaluation
  bool certificate = true;
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
/// Declares the options of a step and of its measurement, which bin/compare shares.
void declare_step_options(OptionSet& options, TrainOptions& values);

/// `warmup_seconds` with the backend's default resolved.
double warmup_seconds_of(const TrainOptions& options, BackendKind kind);

/// `augment` with auto resolved: photographs are cropped, small images shifted.
Augmentation augmentation_of(const TrainOptions& options);

}  // namespace shakedown::training
