// The batches of one run: loaders over a dataset's folders, or synthetic ones.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "resnet/model_options.hpp"
#include "resnet/tensor_file.hpp"
#include "training/data/batches.hpp"
#include "training/data/source.hpp"
#include "training/data/transform.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

// The network of a .safetensors file that was written here, from its metadata.

/// Empty if the file does not have it, as one from elsewhere.
struct SavedModel {
  std::string model;
  int image_size = 0;
  std::vector<std::string> classes;  // in the order of the classifier; none after synthetic data
};

Metadata metadata_of(const SavedModel& saved);
/// Throws UsageError naming `file` where the metadata is not understood.
SavedModel saved_model_of(const Metadata& metadata, const std::string& file);

/// --model and --image-size become those of --weights unless they were given. Throws UsageError
/// where --model was and the file holds another. Reads the file's header. `set` parsed the options.
void take_saved_model(const OptionSet& set, ModelOptions& options);

/// Throws UsageError naming the classes in which `images` and the file differ. Images to train on
/// may have another number of them: then the classifier starts anew.
void check_classes(const SavedModel& saved, const std::string& file, const ImageSource& images,
                   bool evaluates);

// Which images there are to train on and to validate, or that the data are synthetic.

class Dataset {
 public:
  /// Lists the images, once for all that is measured. Throws UsageError when training and
  /// validation do not fit together, --weights was trained on other classes, or a rank, which it
  /// names, lists other images than rank 0.
  Dataset(const DataOptions& options, const ModelOptions& model, bool evaluates,
          const MpiSession& session);

  bool synthetic() const { return training_ == nullptr; }
  /// "synthetic", or the folder, for the record.
  std::string name() const;
  /// "6000 images of 10 classes in DIR, 1000 to validate", for people.
  std::string summary() const;
  /// The number of classes of the folder, or --classes.
  int classes() const { return classes_; }
  /// Unless it is synthetic.
  const ImageSource& training() const { return *training_; }
  bool validates() const { return validation_ != nullptr; }
  /// Where it validates.
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

/// The images of a folder or of a packed file, which the option names. Throws UsageError.
std::unique_ptr<ImageSource> open_images(const char* option, const std::string& path);

class TrainingData {
 public:
  /// Starts the loaders. All but the options outlive this. Collective.
  TrainingData(const DataOptions& options, const Dataset& dataset, const EngineSettings& step,
               const Backend& backend, Stream& stream);

  const Dataset& dataset() const { return dataset_; }
  BatchSource& training() { return *training_; }
  BatchSource* validation() { return validation_.get(); }
  /// Batches per epoch of each rank that computes; 0 if an epoch does not end.
  long batches_per_epoch() const { return batches_per_epoch_; }
  const InputSetup& setup() const { return setup_; }
  /// Counts the bad training images that the ranks have met so far. Throws UsageError naming some
  /// when they are more than allowed. Collective.
  long bad_count() const { return static_cast<long>(all_bad_images().size()); }
  BadImages& bad_images() { return bad_images_; }
  /// The count for people, with some names; "" where there is none. Collective.
  std::string bad_images_text() const;
  /// How the input is set up, and whether this many batches per rank exceed the data; or "".
  std::string remark(long batches) const;

 private:
  std::set<std::size_t> all_bad_images() const;
  LoaderSettings loader_settings(bool training, int rank);
  void choose_decoder();
  std::unique_ptr<BatchSource> loaded(const ImageSource& source, const LoaderSettings& settings,
                                      const DevicePart& device_part);
  std::unique_ptr<BatchSource> training_source(int rank);

  const DataOptions options_;
  const Dataset& dataset_;
  const EngineSettings& step_;
  const Backend& backend_;
  Stream& stream_;
  const StrategyEntry& strategy_;
  long batches_per_epoch_ = 0;
  InputSetup setup_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<DeviceDecoder> decoder_;
  std::unique_ptr<DeviceCrops> crops_;
  std::string no_engines_;  // why the GPU's JPEG engines decode nothing
  BadImages bad_images_;    // of training; in validation none is allowed
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::unique_ptr<BatchSource> training_;
  std::unique_ptr<BatchSource> validation_;
};

/// Device memory that TrainingData of this step will allocate on this rank for a network: at most,
/// as the GPU's JPEG engines are looked for later.
std::function<std::size_t(const NetworkSettings&)> input_bytes(const DataOptions& options,
                                                               const EngineSettings& step,
                                                               const Backend& backend);

}  // namespace shakedown::training
