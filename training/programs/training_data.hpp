// The batches of one run: loaders over a dataset's folders, or synthetic ones.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "training/data/batches.hpp"
#include "training/data/transform_options.hpp"
#include "training/programs/dataset.hpp"
#include "training/programs/input_options.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

struct InputSettings {
  InputOptions options;
  TransformOptions transform;
  bool validates = false;
  int max_bad_images = 0;  // of training
  bool exif = false;
  bool cache = false;
};

class TrainingData {
 public:
  /// The dataset outlives this.
  TrainingData(const InputSettings& settings, const Dataset& dataset);

  /// Starts the loaders. The stream and device outlive this. Collective.
  void open(const EngineSettings& step, const Backend& backend, Stream& stream);
  BatchSource& training() { return *training_; }
  BatchSource* validation() { return validation_.get(); }
  /// Batches per epoch of each rank that computes; 0 if an epoch does not end.
  long batches_per_epoch() const { return batches_per_epoch_; }
  const InputSetup& setup() const { return setup_; }
  /// Counts the bad training images that the ranks have met so far. Throws UsageError naming some
  /// when they are more than allowed. Collective; valid as long as this is.
  std::function<long()> bad_count() const;
  BadImages& bad_images() { return bad_images_; }
  /// The count for people, with some names; "" where there is none. Collective.
  std::string bad_images_text() const;
  /// How the input is set up, and whether this many batches per rank exceed the data; or "".
  std::string remark(long batches) const;

 private:
  std::set<std::size_t> all_bad_images() const;
  LoaderSettings loader_settings(const EngineSettings& step, bool training, int rank, int ranks);
  void choose_decoder(const EngineSettings& step, const Backend& backend,
                      const StrategyEntry& strategy);
  std::unique_ptr<BatchSource> loaded(const ImageSource& source, const LoaderSettings& settings,
                                      const NetworkSettings& shape, const Backend& backend,
                                      Stream& stream, const DevicePart& device_part);
  std::unique_ptr<BatchSource> training_source(const EngineSettings& step, const Backend& backend,
                                               Stream& stream, int rank, int ranks);

  const InputSettings settings_;
  const Dataset& dataset_;
  long batches_per_epoch_ = 0;
  InputSetup setup_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<DeviceDecoder> decoder_;
  std::unique_ptr<DeviceCrops> crops_;
  std::string no_engines_;               // why the GPU's JPEG engines decode nothing
  const MpiSession* session_ = nullptr;  // once open
  BadImages bad_images_;                 // of training; in validation none is allowed
  std::vector<std::unique_ptr<Loader>> loaders_;
  std::unique_ptr<BatchSource> training_;
  std::unique_ptr<BatchSource> validation_;
};

/// Device memory that TrainingData of this step will allocate on this rank for a network: at most,
/// as the GPU's JPEG engines are looked for later.
std::function<std::size_t(const NetworkSettings&)> input_bytes(const InputSettings& settings,
                                                               const EngineSettings& step,
                                                               const Backend& backend,
                                                               bool synthetic);

}  // namespace shakedown::training
