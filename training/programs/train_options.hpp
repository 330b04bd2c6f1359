// Command-line options of bin/train.
#pragma once

#include <string>

#include "common/backend.hpp"
#include "resnet/network.hpp"
#include "training/data/transform.hpp"
#include "training/step/engine.hpp"
#include "training/step/schedule.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct DataOptions {
  std::string train_dir;  // empty: synthetic
  std::string val_dir;
  std::string augment = "auto";
  int workers = 4;
  int prefetch = 4;
  bool synthetic() const { return train_dir.empty(); }
};

struct TrainOptions {
  BackendOptions backend;
  ModelOptions model;
  StrategyOptions strategy;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  DataOptions data;
  int batch_size = 64;
  int global_batch = 0;  // 0: batch_size a rank
  int accumulate = 1;
  std::string graph = "auto";
  int iterations = 100;
  int warmup = 20;
  double warmup_seconds = -1;  // -1: the backend's
  int epochs = -1;             // -1: the throughput run
  bool certificate = true;
  int seed = 0;
  std::string save;
  std::string record;
  std::string trace;
  bool describe = false;
  bool layers = false;
  bool kernels = false;
  bool max_batch = false;
  int max_batch_limit = 0;  // 0: the backend's
};

void declare_options(OptionSet& options, TrainOptions& values);
/// Of these, the ones that say what a step is and how it is measured: bin/compare has them too.
void declare_step_options(OptionSet& options, TrainOptions& values);

/// Images per rank and micro-batch, for this many computing ranks. Throws UsageError where
/// --global-batch cannot be divided.
int batch_size_of(const TrainOptions& options, int ranks);

/// Settings that follow from the options, the backend and the classes of the data.
EngineSettings engine_settings(const TrainOptions& options, const Backend& backend, int classes);

/// `warmup_seconds` with the backend's default resolved.
double warmup_seconds_of(const TrainOptions& options, BackendKind kind);

/// `augment` with auto resolved: photographs are cropped, small images shifted.
Augmentation augmentation_of(const TrainOptions& options);

}  // namespace shakedown::training
