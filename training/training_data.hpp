// The data of one training run: folders, loaders and the batches they give, or synthetic ones.
#pragma once

#include <memory>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "training/batches.hpp"
#include "training/train_options.hpp"

namespace shakedown {

class TrainingData {
 public:
  /// Lists the folders. Throws UsageError when they do not fit together.
  explicit TrainingData(const TrainOptions& options);

  bool synthetic() const { return options_.data.synthetic(); }
  /// Throws UsageError naming the first rank whose folders list other images than rank 0's.
  void check_ranks_agree(const MpiSession& session) const;
  /// "synthetic", or the folder, for the record.
  std::string name() const;
  /// Of the folder, or --classes.
  int classes() const { return classes_; }

  /// Starts the loaders. The stream and device outlive this.
  void open(const NetworkSettings& shape, const Backend& backend, Stream& stream);
  BatchSource& training() { return *training_; }
  BatchSource* validation() { return validation_.get(); }
  /// Of each rank that computes; 0 where an epoch does not end.
  long batches_per_epoch() const { return batches_per_epoch_; }

  /// "6000 images of 10 classes in DIR, 1000 to validate", for people.
  std::string summary() const;

 private:
  std::unique_ptr<Loader> make_loader(const ImageFolder& folder, const NetworkSettings& shape,
                                      Device& device, bool training, int rank, int ranks) const;
  std::unique_ptr<BatchSource> training_source(const NetworkSettings& shape, const Backend& backend,
                                               Stream& stream, int rank, int ranks);

  TrainOptions options_;
  int classes_;
  ImageFolder training_folder_;
  ImageFolder validation_folder_;
  long batches_per_epoch_ = 0;
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::unique_ptr<BatchSource> training_;
  std::unique_ptr<BatchSource> validation_;
};

}  // namespace shakedown
