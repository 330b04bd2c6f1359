// Which images there are to train on and to validate, or that the data are synthetic.
#pragma once

#include <string>

#include "common/mpi_session.hpp"
#include "resnet/network.hpp"
#include "training/data/image_source.hpp"
#include "training/programs/saved_model.hpp"

namespace shakedown::training {

struct DatasetSettings {
  std::string train_dir;  // empty: synthetic
  std::string val_dir;    // or empty
  std::string weights;    // of --weights, or empty
  int classes = 1000;     // of synthetic data
  bool evaluates = false;
};

class Dataset {
 public:
  /// Lists the folders, once for all that is measured. Throws UsageError when they do not fit
  /// together, or --weights was trained on other classes.
  explicit Dataset(const DatasetSettings& settings);

  bool synthetic() const { return training_.root().empty(); }
  /// Throws UsageError naming the first rank whose folders list other images than rank 0's.
  void check_ranks_agree(const MpiSession& session) const;
  /// "synthetic", or the folder, for the record.
  std::string name() const;
  /// "6000 images of 10 classes in DIR, 1000 to validate", for people.
  std::string summary() const;
  /// The number of classes of the folder, or --classes.
  int classes() const { return classes_; }
  const ImageSource& training() const { return training_; }
  const ImageSource& validation() const { return validation_; }
  /// For --save.
  Metadata metadata(const ModelOptions& model) const;

 private:
  bool only_evaluated() const { return synthetic() && !validation_.root().empty(); }

  int classes_;
  FolderSource training_{{}};
  FolderSource validation_{{}};
};

}  // namespace shakedown::training
