#include "training/training_data.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/random.hpp"
#include "training/strategy.hpp"

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
                                                  const NetworkSettings& shape, Device& device,
                                                  bool training, int rank, int ranks) const {
  LoaderSettings s;
  s.batch_size = shape.batch_size;
  s.workers = options_.data.workers;
  s.prefetch = options_.data.prefetch;
  s.shuffle = training;
  s.drop_last = training;
  s.seed = derive_seed(static_cast<std::uint64_t>(options_.seed), 1);
  s.rank = rank;
  s.world_size = ranks;
  const Augmentation augmentation = augmentation_of(options_);
  s.transform.image_size = shape.image_size;
  s.transform.augmentation = training ? augmentation : Augmentation::none;
  s.transform.center_crop = augmentation == Augmentation::resized_crop;
  return std::make_unique<Loader>(folder, s, device);
}

/// Of the batches of rank number `rank` of those that compute.
std::unique_ptr<BatchSource> TrainingData::training_source(const NetworkSettings& shape,
                                                           const Backend& backend, Stream& stream,
                                                           int rank, int ranks) {
  Device& device = *backend.device;
  if (synthetic())
    return make_synthetic_batches(device, stream, shape,
                                  derive_seed(static_cast<std::uint64_t>(options_.seed),
                                              1000 + static_cast<std::uint64_t>(rank)));
  loaders_.push_back(make_loader(training_folder_, shape, device, true, rank, ranks));
  batches_per_epoch_ = loaders_.back()->batches_per_epoch();
  return make_loaded_batches(*backend.world, *loaders_.back(), device, stream, shape);
}

void TrainingData::open(const NetworkSettings& shape, const Backend& backend, Stream& stream) {
  Device& device = *backend.device;
  Communicator& world = *backend.world;
  const StrategyEntry& strategy = find_strategy(options_.strategy.strategy);
  const int ranks = strategy.computing(world.size());
  const bool computes = strategy.computes(world.rank());
  const int rank = computes ? world.rank() - (strategy.ranks.first_serves ? 1 : 0) : 0;

  training_ = training_source(shape, backend, stream, rank, ranks);
  if (strategy.ranks.first_has_inputs) {
    std::vector<std::unique_ptr<BatchSource>> of_every_rank;
    if (world.rank() == 0) {
      of_every_rank.push_back(std::move(training_));
      for (int r = 1; r < ranks; ++r)
        of_every_rank.push_back(training_source(shape, backend, stream, r, ranks));
    }
    training_ = make_scattered_batches(world, device, stream, shape, std::move(of_every_rank),
                                       batches_per_epoch_);
  }
  if (!computes) training_ = make_no_batches();
  if (options_.epochs < 0 || options_.data.val_dir.empty()) return;
  if (!computes) {
    validation_ = make_no_batches();
    return;
  }
  loaders_.push_back(make_loader(validation_folder_, shape, device, false, rank, ranks));
  validation_ = make_loaded_batches(world, *loaders_.back(), device, stream, shape);
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
