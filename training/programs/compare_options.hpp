// Options of bin/compare: bin/train's step options, and the lists to sweep over.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/programs/train_options.hpp"

namespace shakedown::training {

class Dataset;

struct CompareOptions {
  TrainOptions train;  // of every configuration, but for the lists
  std::vector<std::string> strategies{"all"};
  std::vector<std::string> models{train.model.model};
  std::vector<std::string> precisions{train.model.precision};
  std::vector<int> batch_sizes{train.batch_size};
  std::vector<double> bucket_caps_mb{train.strategy.bucket_cap_mb};
  std::vector<int> ranks;             // empty: all of the job
  std::vector<std::string> settings;  // names of settings()
  int repeats = 3;
  int epoch_images = 0;  // 0: ImageNet's, or the folder's
};

void declare_options(OptionSet& options, CompareOptions& values);

/// As take_saved_model of bin/train's options, where no --models are given.
void take_saved_model(const OptionSet& set, CompareOptions& options);

/// The images of the epoch whose time is predicted.
long epoch_images(const CompareOptions& options, const Dataset& data);

// bin/compare --settings: one-switch variants of plain ddp.

struct Setting {
  const char* name;
  bool only_gpu;  // the cpu backend has no such switch
  /// Throws the switch in options of plain ddp; false where it stands so already, or has no such
  /// position there: then there is nothing to compare.
  bool (*change)(StepOptions& options);
  /// Changes the options. Why there is nothing to compare: "only on the gpu backend"; else "".
  std::string apply(StepOptions& options, BackendKind backend) const;
};

/// The one list of settings.
const std::vector<Setting>& settings();
std::vector<std::string> setting_names();

}  // namespace shakedown::training
