#include "training/programs/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/hash.hpp"
#include "common/host.hpp"
#include "common/mpi_session.hpp"
#include "common/options.hpp"
#include "common/record.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"
#include "resnet/model_options.hpp"
#include "training/data/pack.hpp"
#include "training/data/source.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

constexpr int kFewWorkers = 4;

void report_bad(const std::string& text) { fmt::print(stderr, "{}\n", text); }

int fewest(const MpiSession& session, int mine) {
  const auto all = session.all_gather(static_cast<double>(mine));
  return static_cast<int>(*std::min_element(all.begin(), all.end()));
}

/// Whether the options leave images to a device decoder where `workers` is the fewest of a rank.
bool requests_device_decoder(const DataOptions& options, int workers) {
  if (options.decoder == "cpu") return false;
  return options.decoder == "nvjpeg" || workers < kWorkersLikeEngines;
}

/// Why a device cannot decode or scale the training images; "" where it can.
std::string why_no_device_part(const DataOptions& options, const NetworkSettings& shape,
                               const StrategyEntry& strategy) {
  if (!device_can_transform(training_transform(options.transform, shape.image_size)))
    return "the device only crops, which is --augment crop";
  if (strategy.ranks.first_has_inputs)
    return fmt::format("rank 0 loads the images of all ranks with --strategy {}", strategy.name);
  return "";
}

DeviceDecoderSettings decoder_settings(const NetworkSettings& shape) {
  return {shape.batch_size, shape.image_size};
}

std::unique_ptr<DeviceDecoder> try_device_decoder(Device& device, const NetworkSettings& shape,
                                                  std::string& why_not) {
  try {
    return make_device_decoder(device, decoder_settings(shape), why_not);
  } catch (const OutOfMemory& error) {
    why_not = error.what();
    return nullptr;
  }
}

}  // namespace

TrainingData::TrainingData(const DataOptions& options, const Dataset& dataset,
                           const EngineSettings& step, const Backend& backend, Stream& stream)
    : options_(options),
      dataset_(dataset),
      step_(step),
      backend_(backend),
      stream_(stream),
      strategy_(find_strategy(step.strategy.strategy)),
      bad_images_(options.max_bad_images, report_bad) {
  Communicator& world = *backend.world;
  const int ranks = strategy_.computing(world.size());
  const bool computes = strategy_.computes(world.rank());
  const int rank = strategy_.computing_rank(world.rank());

  if (!dataset.synthetic() || dataset.validates()) {
    setup_.cores = backend.cores;
    setup_.workers = workers_of(options, backend.cores);
    setup_.ranks = strategy_.ranks.first_has_inputs ? 1 : ranks;
  }
  if (!dataset.synthetic()) {
    setup_.packed = is_packed_file(dataset.training().root());
    batches_per_epoch_ =
        training::batches_per_epoch(dataset.training(), loader_settings(true, rank));
    choose_decoder();
    // With the host's pixels, so ranks need not agree on it.
    if (computes && why_no_device_part(options, step.network, strategy_).empty())
      crops_ = make_device_crops(*backend.device, decoder_settings(step.network));
  }
  if (!computes) {
    training_ = make_no_batches();
    if (dataset.validates())
      validation_ = make_no_batches(
          training::batches_per_epoch(dataset.validation(), loader_settings(false, rank)));
    return;
  }
  if (setup_.workers > 0) workers_ = std::make_unique<Workers>(setup_.workers);
  if (strategy_.ranks.first_has_inputs) {
    std::vector<std::unique_ptr<BatchSource>> of_every_rank;
    for (int r = 0; world.rank() == 0 && r < ranks; ++r)
      of_every_rank.push_back(training_source(r));
    training_ = make_scattered_batches(world, *backend.device, stream, step.network,
                                       std::move(of_every_rank), batches_per_epoch_);
  } else {
    training_ = training_source(rank);
  }
  if (dataset.validates())
    validation_ = loaded(dataset.validation(), loader_settings(false, rank), {});
}

LoaderSettings TrainingData::loader_settings(bool training, int rank) {
  LoaderSettings s;
  s.batch_size = step_.network.batch_size;
  s.prefetch = options_.prefetch;
  s.shuffle = training;
  s.drop_last = training;
  s.seed = step_.seed_of(1);
  s.rank = rank;
  s.world_size = strategy_.computing(backend_.world->size());
  if (training) s.shards = step_.shards();
  s.transform = training ? training_transform(options_.transform, step_.network.image_size)
                         : validation_transform(options_.transform, step_.network.image_size);
  if (training) s.bad_images = &bad_images_;
  return s;
}

/// The same on every rank, so that it does not depend on a rank's GPU who decodes an image.
void TrainingData::choose_decoder() {
  if (!requests_device_decoder(options_, fewest(*backend_.session, setup_.workers))) return;
  std::string why_not = why_no_device_part(options_, step_.network, strategy_);
  if (why_not.empty() && strategy_.computes(backend_.world->rank()))
    decoder_ = try_device_decoder(*backend_.device, step_.network, why_not);
  for (const std::string& problem : backend_.session->all_gather(why_not))
    if (!problem.empty()) why_not = problem;
  if (options_.decoder == "nvjpeg" && !why_not.empty())
    throw UsageError("--decoder nvjpeg: " + why_not);
  if (!why_not.empty()) {
    decoder_.reset();
    if (backend_.kind == BackendKind::gpu) no_engines_ = why_not;
    return;
  }
  setup_.decoder = "nvjpeg";
}

std::unique_ptr<BatchSource> TrainingData::loaded(const ImageSource& source,
                                                  const LoaderSettings& settings,
                                                  const DevicePart& device_part) {
  loaders_.push_back(
      std::make_unique<Loader>(source, settings, *backend_.device, *workers_, device_part));
  return make_loaded_batches(*backend_.world, *loaders_.back(), *backend_.device, stream_,
                             step_.network);
}

/// The source of the batches of the `rank`-th rank that computes.
std::unique_ptr<BatchSource> TrainingData::training_source(int rank) {
  if (!dataset_.synthetic())
    return loaded(dataset_.training(), loader_settings(true, rank), {decoder_.get(), crops_.get()});
  std::vector<std::uint64_t> seeds;
  for (int shard = rank * step_.shards(); shard < (rank + 1) * step_.shards(); ++shard)
    seeds.push_back(step_.seed_of(1000 + static_cast<std::uint64_t>(shard)));
  return make_synthetic_batches(*backend_.device, stream_, step_.network, seeds);
}

std::set<std::size_t> TrainingData::all_bad_images() const {
  std::set<std::size_t> all = over_ranks(bad_images_, *backend_.session);
  if (static_cast<long>(all.size()) > bad_images_.most_allowed())
    throw UsageError(fmt::format("--max-bad-images {}: {} images are bad: {}",
                                 bad_images_.most_allowed(), all.size(),
                                 names_of(dataset_.training(), all)));
  return all;
}

std::string TrainingData::bad_images_text() const {
  const std::set<std::size_t> bad = all_bad_images();
  if (bad.empty()) return "";
  return fmt::format("bad images, replaced by the next ones: {} of {}: {}", bad.size(),
                     dataset_.training().size(), names_of(dataset_.training(), bad));
}

std::string TrainingData::remark(long batches) const {
  if (setup_.workers == 0) return "";
  std::string text = fmt::format("input: {} per rank", counted(setup_.workers, "worker"));
  if (options_.workers == "auto" && setup_.workers < kFewWorkers) {
    text += ", its share of the cores it may run on";
    if (has_other_cores())
      text += ": srun gives it more by --cpus-per-task, mpirun by --bind-to none";
  }
  if (setup_.decoder != "cpu")
    text += fmt::format(", {} decodes the baseline JPEG files", setup_.decoder);
  if (!no_engines_.empty()) text += fmt::format("; the CPU decodes all images: {}", no_engines_);
  text = wrapped(text, 2);
  if (batches_per_epoch_ > 0 && batches > batches_per_epoch_)
    text +=
        "\n" +
        wrapped(fmt::format("the run is longer than the data, which start over: its {} "
                            "batches per rank are {:.1f} epochs",
                            batches,
                            static_cast<double>(batches) / static_cast<double>(batches_per_epoch_)),
                2);
  return text;
}

std::function<std::size_t(const NetworkSettings&)> input_bytes(const DataOptions& options,
                                                               const EngineSettings& step,
                                                               const Backend& backend) {
  const bool synthetic = options.train_dir.empty();
  const StrategyEntry& strategy = find_strategy(step.strategy.strategy);
  const int rank = backend.world->rank();
  const int per_source = synthetic ? step.shards() : kLoadedBatchesHeld;
  int batches = per_source;
  if (strategy.ranks.first_has_inputs)  // the others receive theirs
    batches = rank == 0 ? per_source * std::max(1, strategy.computing(backend.world->size())) : 1;
  if (!options.val_dir.empty()) batches += kLoadedBatchesHeld;
  const bool scales = !synthetic && why_no_device_part(options, step.network, strategy).empty();
  const bool decodes =
      scales && requests_device_decoder(options, workers_of(options, backend.cores));
  return [batches, scales, decodes, kind = backend.kind](const NetworkSettings& shape) {
    const DeviceDecoderSettings on_device = decoder_settings(shape);
    return static_cast<std::size_t>(batches) * batch_bytes(shape) +
           (scales ? device_crops_bytes(kind, on_device) : 0) +
           (decodes ? device_decoder_bytes(kind, on_device) : 0);
  };
}

namespace {

std::string checksum_text(const ImageSource* source) {
  return source == nullptr
             ? "none"
             : fmt::format("{} images, listing {:x}", source->size(), source->checksum());
}

}  // namespace

std::unique_ptr<ImageSource> open_images(const char* option, const std::string& path) {
  return named_by(option, [&]() -> std::unique_ptr<ImageSource> {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return std::make_unique<PackSource>(path);
    return std::make_unique<FolderSource>(scan_image_folder(path));
  });
}

Dataset::Dataset(const DataOptions& options, const ModelOptions& model, bool evaluates,
                 const MpiSession& session)
    : classes_(model.classes) {
  if (!options.train_dir.empty()) training_ = open_images("--train-dir", options.train_dir);
  if (!options.val_dir.empty()) validation_ = open_images("--val-dir", options.val_dir);
  check_ranks_agree(session);
  if (training_ && validation_) check_same_classes(*training_, *validation_);
  if (synthetic() && !evaluates) return;

  const ImageSource& images = *classified();
  classes_ = static_cast<int>(images.classes().size());
  const std::string& weights = model.weights;
  if (!weights.empty())
    check_classes(saved_model_of(read_safetensors_metadata(weights), weights), weights, images,
                  evaluates);
}

void Dataset::check_ranks_agree(const MpiSession& session) const {
  for (const ImageSource* source : {training_.get(), validation_.get()}) {
    const auto listings = session.all_gather(checksum_text(source));
    const auto& hosts = session.hosts();
    for (std::size_t r = 1; r < listings.size(); ++r)
      if (listings[r] != listings[0])
        throw UsageError(
            fmt::format("{}: rank {} on {} sees other images ({}) than rank 0 on {} ({})",
                        source == nullptr ? "the data" : source->root(), r, hosts[r], listings[r],
                        hosts[0], listings[0]));
  }
}

std::string Dataset::name() const {
  return classified() == nullptr ? "synthetic" : classified()->root();
}

std::string Dataset::summary() const {
  if (classified() == nullptr) return "synthetic, " + counted(classes_, "class", "es");
  if (synthetic()) return text_of(*validation_) + ", to evaluate";
  std::string text = text_of(*training_);
  if (validation_)
    text += fmt::format(", {} to validate{}", validation_->size(), validation_->remark());
  return text;
}

Metadata Dataset::metadata(const ModelOptions& model) const {
  const ImageSource* images = classified();
  return metadata_of({model.model, model.image_size,
                      images == nullptr ? std::vector<std::string>() : images->classes()});
}

namespace {

constexpr const char* kKey = "shakedown";

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Metadata metadata_of(const SavedModel& saved) {
  const Json json{
      {"model", saved.model}, {"image_size", saved.image_size}, {"classes", saved.classes}};
  // a folder's name need not be UTF-8
  return {{kKey, json_text(json)}};
}

SavedModel saved_model_of(const Metadata& metadata, const std::string& file) {
  const auto found = metadata.find(kKey);
  if (found == metadata.end()) return {};
  try {
    const Json json = Json::parse(found->second);
    return {json.at("model"), json.at("image_size"), json.at("classes")};
  } catch (const Json::exception&) {
    throw UsageError(fmt::format("{}: its metadata \"{}\" is not understood", file, kKey));
  }
}

void take_saved_model(const OptionSet& set, ModelOptions& options) {
  const std::string& file = options.weights;
  if (file.empty()) return;
  const SavedModel saved =
      named_by("--weights", [&] { return saved_model_of(read_safetensors_metadata(file), file); });
  if (saved.model.empty()) return;
  if (set.given("--model") && options.model != saved.model)
    throw UsageError(
        fmt::format("--model {}: --weights {} holds a {}", options.model, file, saved.model));
  options.model = saved.model;
  if (set.given("--image-size")) return;
  options.image_size = saved.image_size;
  if (saved.image_size < kLeastImageSize || saved.image_size > kMostImageSize)
    throw UsageError(
        fmt::format("--weights {}: its metadata have the image size {}, which must be "
                    "{} to {}",
                    file, saved.image_size, kLeastImageSize, kMostImageSize));
}

void check_classes(const SavedModel& saved, const std::string& file, const ImageSource& images,
                   bool evaluates) {
  const auto own = saved_model_of(metadata_of({"", 0, images.classes()}), file).classes;
  if (saved.classes.empty() || saved.classes == own) return;
  if (!evaluates && saved.classes.size() != own.size()) return;
  const std::string different = names_missing(sorted(saved.classes), sorted(own), images.root()) +
                                names_missing(sorted(own), sorted(saved.classes), file);
  throw UsageError(fmt::format("--weights {}: trained on other classes than those of {}{}", file,
                               images.root(),
                               different.empty() ? "; in another order" : different));
}

}  // namespace shakedown::training
