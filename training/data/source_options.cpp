#include "training/data/source_options.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

/// DIR/NAME.pack, or DIR/NAME, or "" if neither is there.
std::string part_of(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  const fs::path path = fs::path(folder) / name;
  if (fs::is_regular_file(path.string() + ".pack", ignored)) return path.string() + ".pack";
  return fs::is_directory(path, ignored) ? path.string() : "";
}

}  // namespace

void declare_options(OptionSet& options, SourceOptions& values) {
  const std::vector<std::string> images{"--data-dir", "--train-dir", "--val-dir"};
  options
      .add("--data-dir", values.data_dir,
           "folder with train/ and val/, or train.pack and val.pack; one without train/ is itself "
           "the folder to train on")
      .metavar("DIR")
      .default_text("synthetic")
      .not_with({"--train-dir"});
  options
      .add("--train-dir", values.train_dir,
           "folder with one sub-folder of images per class, or a packed file of it")
      .metavar("DIR")
      .default_text("synthetic");
  options
      .add("--cache", values.cache,
           "keep the encoded images of a folder in memory after their first read, in each rank a "
           "copy; a packed file, which the ranks of a host share, is then read in windows of 8 MiB")
      .only_with(images);
  options
      .add("--max-bad-images", values.max_bad_images,
           "training images that may be corrupt: each is named and replaced by the next one of the "
           "listing; counted over the whole training; in validation none may be; an image that "
           "cannot be read ends the run with exit code 3")
      .at_least(0)
      .only_with({"--data-dir", "--train-dir"});
  options
      .add("--exif", values.exif,
           "turn JPEG images as their EXIF orientation says; off: as torchvision, which ignores it")
      .only_with(images);
}

void find_data(SourceOptions& options, bool trains, bool validates) {
  const std::string& folder = options.data_dir;
  if (folder.empty()) return;
  const std::string train = part_of(folder, "train");
  if (trains) options.train_dir = train.empty() ? folder : train;
  if (!validates || !options.val_dir.empty()) return;
  if (!trains || !train.empty()) options.val_dir = part_of(folder, "val");
  if (!trains && options.val_dir.empty())
    throw UsageError(fmt::format("--data-dir {}: there is no val/ or val.pack in it", folder));
}

}  // namespace shakedown::training
