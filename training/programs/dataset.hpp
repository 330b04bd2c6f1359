// Which images there are to train on and to validate, or that the data are synthetic.
#pragma once

#include <memory>
#include <string>

#include "common/mpi_session.hpp"
#include "resnet/model_options.hpp"
#include "training/data/image_source.hpp"
#include "training/programs/saved_model.hpp"

namespace shakedown::training {

struct DatasetSettings {
  std::string train_dir;  // empty: synthetic
  std::string val_dir;    // or empty
  std::string weights;    // of --weights, or empty
  int classes = 1000;     // of synthetic data
  bool evaluates = false;
  bool cache = false;
};

class Dataset {
 public:
  /// Lists the images, once for all that is measured. Throws UsageError when training and
  /// validation do not fit together, --weights was trained on other classes, or a rank, which it
  /// names, lists other images than rank 0.
  Dataset(const DatasetSettings& settings, const MpiSession& session);

  bool synthetic() const { return training_ == nullptr; }
  /// "synthetic", or the folder, for the record.
  std::string name() const;
  /// "6000 images of 10 classes in DIR, 1000 to validate", for people.
  std::string summary() const;
  /// The number of classes of the folder, or --classes.
  int classes() const { return classes_; }
  /// Unless it is synthetic.
  const ImageSource& training() const { return *training_; }
  /// Where --val-dir is given.
  const ImageSource& validation() const { return *validation_; }
  /// For --save.
  Metadata metadata(const ModelOptions& model) const;

 private:
  void check_ranks_agree(const MpiSession& session) const;
  /// The images that decide about the classes; null: synthetic data do.
  const ImageSource* classified() const {
    return synthetic() ? validation_.get() : training_.get();
  }

  int classes_;
  std::unique_ptr<ImageSource> training_;  // or null
  std::unique_ptr<ImageSource> validation_;
};

/// The images of a folder or of a packed file; see --cache. Throws UsageError that names it.
std::unique_ptr<ImageSource> open_images(const std::string& path, bool cache);

}  // namespace shakedown::training
