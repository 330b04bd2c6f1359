// The batches of one run: loaders over a dataset's folders, or synthetic ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "training/data/batches.hpp"
#include "training/programs/dataset.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct InputSettings {
  int workers = 4;  // loader threads
  int prefetch = 4;
  Augmentation augmentation = Augmentation::none;
  bool validates = false;
};

class TrainingData {
 public:
  /// The dataset outlives this.
  TrainingData(const InputSettings& settings, const Dataset& dataset);

  /// Starts the loaders. The stream and device outlive this.
  void open(const EngineSettings& step, const Backend& backend, Stream& stream);
  BatchSource& training() { return *training_; }
  BatchSource* validation() { return validation_.get(); }
  /// Batches per epoch of each rank that computes; 0 if an epoch does not end.
  long batches_per_epoch() const { return batches_per_epoch_; }
  /// A remark if this many batches per rank exceed the data, or "".
  std::string remark(long batches) const;

 private:
  LoaderSettings loader_settings(const EngineSettings& step, bool training, int rank,
                                 int ranks) const;
  std::unique_ptr<BatchSource> loaded(const ImageSource& source, const LoaderSettings& settings,
                                      const NetworkSettings& shape, const Backend& backend,
                                      Stream& stream);
  std::unique_ptr<BatchSource> training_source(const EngineSettings& step, const Backend& backend,
                                               Stream& stream, int rank, int ranks);

  const InputSettings settings_;
  const Dataset& dataset_;
  long batches_per_epoch_ = 0;
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::unique_ptr<BatchSource> training_;
  std::unique_ptr<BatchSource> validation_;
};

}  // namespace shakedown::training
