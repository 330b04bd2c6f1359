#include "training/programs/training_data.hpp"

#include <fmt/format.h>

#include "common/random.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

TrainingData::TrainingData(const InputSettings& settings, const Dataset& dataset)
    : settings_(settings), dataset_(dataset) {}

LoaderSettings TrainingData::loader_settings(const EngineSettings& step, bool training, int rank,
                                             int ranks) const {
  LoaderSettings s;
  s.batch_size = step.network.batch_size;
  s.workers = settings_.workers;
  s.prefetch = settings_.prefetch;
  s.shuffle = training;
  s.drop_last = training;
  s.seed = derive_seed(step.seed, 1);
  s.rank = rank;
  s.world_size = ranks;
  const Augmentation augmentation = settings_.augmentation;
  s.transform.image_size = step.network.image_size;
  s.transform.augmentation = training ? augmentation : Augmentation::none;
  s.transform.center_crop = augmentation == Augmentation::resized_crop;
  return s;
}

std::unique_ptr<BatchSource> TrainingData::loaded(const ImageSource& source,
                                                  const LoaderSettings& settings,
                                                  const NetworkSettings& shape,
                                                  const Backend& backend, Stream& stream) {
  loaders_.push_back(std::make_unique<Loader>(source, settings, *backend.device));
  return make_loaded_batches(*backend.world, *loaders_.back(), *backend.device, stream, shape);
}

/// The source of the batches of the `rank`-th rank that computes.
std::unique_ptr<BatchSource> TrainingData::training_source(const EngineSettings& step,
                                                           const Backend& backend, Stream& stream,
                                                           int rank, int ranks) {
  if (!dataset_.synthetic())
    return loaded(dataset_.training(), loader_settings(step, true, rank, ranks), step.network,
                  backend, stream);
  return make_synthetic_batches(*backend.device, stream, step.network,
                                derive_seed(step.seed, 1000 + static_cast<std::uint64_t>(rank)));
}

void TrainingData::open(const EngineSettings& step, const Backend& backend, Stream& stream) {
  Communicator& world = *backend.world;
  const StrategyEntry& strategy = find_strategy(step.strategy.strategy);
  const int ranks = strategy.computing(world.size());
  const bool computes = strategy.computes(world.rank());
  const int rank = strategy.computing_rank(world.rank());

  if (!dataset_.synthetic())
    batches_per_epoch_ =
        training::batches_per_epoch(dataset_.training(), loader_settings(step, true, rank, ranks));
  if (!computes) {
    training_ = make_no_batches();
    if (settings_.validates) validation_ = make_no_batches();
    return;
  }
  if (strategy.ranks.first_has_inputs) {
    std::vector<std::unique_ptr<BatchSource>> of_every_rank;
    for (int r = 0; world.rank() == 0 && r < ranks; ++r)
      of_every_rank.push_back(training_source(step, backend, stream, r, ranks));
    training_ = make_scattered_batches(world, *backend.device, stream, step.network,
                                       std::move(of_every_rank), batches_per_epoch_);
  } else {
    training_ = training_source(step, backend, stream, rank, ranks);
  }
  if (settings_.validates)
    validation_ = loaded(dataset_.validation(), loader_settings(step, false, rank, ranks),
                         step.network, backend, stream);
}

std::string TrainingData::remark(long batches) const {
  if (batches_per_epoch_ == 0 || batches <= batches_per_epoch_) return "";
  return fmt::format("the run is longer than the data: its {} batches per rank are {:.1f} epochs",
                     batches,
                     static_cast<double>(batches) / static_cast<double>(batches_per_epoch_));
}

}  // namespace shakedown::training
