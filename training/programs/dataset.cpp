#include "training/programs/dataset.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "common/error.hpp"
#include "common/host_memory.hpp"
#include "training/data/cached_source.hpp"
#include "training/data/pack_source.hpp"

namespace shakedown::training {
namespace {

double gib(std::uint64_t bytes) { return static_cast<double>(bytes) * 0x1p-30; }

/// A tenth of the memory is left to others.
bool memory_is_free() {
  const MemoryInfo memory = host_memory();
  return memory.free_bytes > memory.total_bytes / 10;
}

void report_full(const CachedSource& source) {
  fmt::print(
      stderr,
      "--cache: only {:.1f} GiB of {} are kept, as less than a tenth of the memory is free\n",
      gib(source.bytes_kept()), source.root());
}

/// By windows if the whole file fits the memory: else each image would cost a window.
std::unique_ptr<ImageSource> open_pack(const std::string& path, bool cache) {
  std::error_code ignored;
  const auto bytes = std::filesystem::file_size(path, ignored);
  const std::size_t available = host_memory().free_bytes;
  const bool fits = bytes <= available;
  if (cache && !fits)
    fmt::print(stderr,
               "--cache: {} has {:.1f} GiB and {:.1f} GiB of memory are available: its images are "
               "read one by one\n",
               path, gib(bytes), gib(available));
  return std::make_unique<PackSource>(path, cache && fits);
}

std::string checksum_text(const ImageSource* source) {
  return source == nullptr
             ? "none"
             : fmt::format("{} images, listing {:x}", source->size(), source->checksum());
}

}  // namespace

std::unique_ptr<ImageSource> open_images(const std::string& path, bool cache) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return open_pack(path, cache);
  auto folder = std::make_unique<FolderSource>(scan_image_folder(path));
  if (!cache) return folder;
  return std::make_unique<CachedSource>(std::move(folder), memory_is_free, report_full);
}

Dataset::Dataset(const DatasetSettings& settings, const MpiSession& session)
    : classes_(settings.classes) {
  if (!settings.train_dir.empty()) training_ = open_images(settings.train_dir, settings.cache);
  if (!settings.val_dir.empty()) validation_ = open_images(settings.val_dir, settings.cache);
  check_ranks_agree(session);
  if (training_ && validation_) check_same_classes(*training_, *validation_);
  if (synthetic() && !settings.evaluates) return;

  const ImageSource& images = *classified();
  classes_ = static_cast<int>(images.classes().size());
  const std::string& weights = settings.weights;
  if (!weights.empty())
    check_classes(saved_model_of(read_safetensors_metadata(weights), weights), weights, images,
                  settings.evaluates);
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
  if (classified() == nullptr)
    return fmt::format("synthetic, {} class{}", classes_, classes_ == 1 ? "" : "es");
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

}  // namespace shakedown::training
