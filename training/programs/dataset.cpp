#include "training/programs/dataset.hpp"

#include <fmt/format.h>

#include "common/error.hpp"

namespace shakedown::training {

Dataset::Dataset(const DatasetSettings& settings) : classes_(settings.classes) {
  if (!settings.train_dir.empty()) training_ = FolderSource(scan_image_folder(settings.train_dir));
  if (!settings.val_dir.empty()) validation_ = FolderSource(scan_image_folder(settings.val_dir));
  if (!synthetic() && !validation_.root().empty())
    check_same_classes(training_.folder(), validation_.folder());
  if (synthetic() && !settings.evaluates) return;

  const ImageFolder& folder = (synthetic() ? validation_ : training_).folder();
  classes_ = static_cast<int>(folder.classes.size());
  const std::string& weights = settings.weights;
  if (!weights.empty())
    check_classes(saved_model_of(read_safetensors_metadata(weights), weights), weights, folder,
                  settings.evaluates);
}

void Dataset::check_ranks_agree(const MpiSession& session) const {
  for (const ImageFolder* folder : {&training_.folder(), &validation_.folder()}) {
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

std::string Dataset::name() const {
  if (!synthetic()) return training_.root();
  return only_evaluated() ? validation_.root() : "synthetic";
}

std::string Dataset::summary() const {
  if (synthetic() && !only_evaluated()) return fmt::format("synthetic, {} classes", classes_);
  if (only_evaluated()) return text_of(validation_.folder()) + ", to evaluate";
  std::string text = text_of(training_.folder());
  if (validation_.size() > 0)
    text += fmt::format(", {} to validate{}", validation_.size(),
                        text_of_left_out(validation_.folder()));
  return text;
}

Metadata Dataset::metadata(const ModelOptions& model) const {
  return metadata_of({model.model, model.image_size,
                      (only_evaluated() ? validation_ : training_).folder().classes});
}

}  // namespace shakedown::training
