// The batches of one run: loaders over a dataset's folders, or synthetic ones.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "training/data/batches.hpp"
#include "training/programs/dataset.hpp"

namespace shakedown::training {

class TrainingData {
 public:
  /// The dataset outlives this.
  TrainingData(const TrainOptions& options, const Dataset& dataset);

  /// Starts the loaders. The stream and device outlive this.
  void open(const NetworkSettings& shape, const Backend& backend, Stream& stream);
  BatchSource& training() { return *training_; }
  BatchSource* validation() { return validation_.get(); }
  /// Of each rank that computes; 0 where an epoch does not end.
  long batches_per_epoch() const { return batches_per_epoch_; }
  /// That a throughput run is longer than the data, or "".
  std::string remark() const;

 private:
  LoaderSettings loader_settings(const NetworkSettings& shape, bool training, int rank,
                                 int ranks) const;
  std::unique_ptr<BatchSource> loaded(const ImageFolder& folder, const LoaderSettings& settings,
                                      const NetworkSettings& shape, const Backend& backend,
                                      Stream& stream);
  std::unique_ptr<BatchSource> training_source(const NetworkSettings& shape, const Backend& backend,
                                               Stream& stream, int rank, int ranks);

  TrainOptions options_;
  const Dataset& dataset_;
  long batches_per_epoch_ = 0;
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::unique_ptr<BatchSource> training_;
  std::unique_ptr<BatchSource> validation_;
};

}  // namespace shakedown::training
