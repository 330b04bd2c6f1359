#include "training/training_data.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/random.hpp"

namespace shakedown {

TrainingData::TrainingData(const TrainOptions& options)
    : options_(options), classes_(options.model.classes) {
  const bool evaluates_only = options.epochs == 0;
  if (evaluates_only && options.data.val_dir.empty())
    throw UsageError("--epochs 0 evaluates: --val-dir is needed");
  if (evaluates_only && options.model.weights.empty())
    throw UsageError("--epochs 0 evaluates: --weights is needed");
  if (options.epochs > 0 && synthetic())
    throw UsageError("--epochs: --train-dir is needed (--iterations runs on synthetic data)");
  if (!synthetic()) training_folder_ = scan_image_folder(options.data.train_dir);
  if (!options.data.val_dir.empty()) validation_folder_ = scan_image_folder(options.data.val_dir);
  if (!synthetic() && !options.data.val_dir.empty())
    check_same_classes(training_folder_, validation_folder_);
  if (!synthetic()) classes_ = static_cast<int>(training_folder_.classes.size());
  if (synthetic() && evaluates_only) classes_ = static_cast<int>(validation_folder_.classes.size());
}

std::unique_ptr<Loader> TrainingData::make_loader(const ImageFolder& folder,
                                                  const NetworkSettings& shape,
                                                  const Backend& backend, bool training) const {
  LoaderSettings s;
  s.batch_size = shape.batch_size;
  s.workers = options_.data.workers;
  s.prefetch = options_.data.prefetch;
  s.shuffle = training;
  s.drop_last = training;
  s.seed = derive_seed(static_cast<std::uint64_t>(options_.seed), 1);
  s.rank = backend.world->rank();
  s.world_size = backend.world->size();
  const Augmentation augmentation = augmentation_of(options_);
  s.transform.image_size = shape.image_size;
  s.transform.augmentation = training ? augmentation : Augmentation::none;
  s.transform.center_crop = augmentation == Augmentation::resized_crop;
  return std::make_unique<Loader>(folder, s, *backend.device);
}

void TrainingData::open(const NetworkSettings& shape, const Backend& backend, Stream& stream) {
  Device& device = *backend.device;
  if (synthetic()) {
    const auto rank = static_cast<std::uint64_t>(backend.world->rank());
    training_ = make_synthetic_batches(
        device, stream, shape, derive_seed(static_cast<std::uint64_t>(options_.seed), 1000 + rank));
  } else {
    training_loader_ = make_loader(training_folder_, shape, backend, true);
    training_ = make_loaded_batches(*training_loader_, device, stream, shape);
  }
  if (options_.epochs >= 0 && !options_.data.val_dir.empty()) {
    validation_loader_ = make_loader(validation_folder_, shape, backend, false);
    validation_ = make_loaded_batches(*validation_loader_, device, stream, shape);
  }
}

void TrainingData::check_ranks_agree(const MpiSession& session) const {
  for (const ImageFolder* folder : {&training_folder_, &validation_folder_}) {
    std::string listing;
    for (const Sample& sample : folder->samples)
      listing += fmt::format("{} {}\n", sample.path, sample.label);
    const auto mine = fmt::format("{} images, listing {:x}", folder->samples.size(),
                                  std::hash<std::string>{}(listing));
    const auto listings = session.all_gather(mine);
    const auto& hosts = session.hosts();
    for (std::size_t r = 1; r < listings.size(); ++r)
      if (listings[r] != listings[0])
        throw UsageError(
            fmt::format("{}: rank {} on {} sees other images ({}) than rank 0 on {} ({})",
                        folder->root, r, hosts[r], listings[r], hosts[0], listings[0]));
  }
}

std::string TrainingData::name() const {
  if (!synthetic()) return training_folder_.root;
  return options_.epochs == 0 ? validation_folder_.root : "synthetic";
}

std::string TrainingData::summary() const {
  std::string text =
      synthetic() ? fmt::format("synthetic, {} classes", classes_)
                  : fmt::format("{} images of {} classes in {}", training_folder_.samples.size(),
                                classes_, training_folder_.root);
  if (!validation_folder_.samples.empty())
    text += fmt::format(", {} to validate", validation_folder_.samples.size());
  return text;
}

}  // namespace shakedown
