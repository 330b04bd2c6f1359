#include "training/data/source_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <vector>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

constexpr std::array kSplits{"train", "training", "val", "valid", "validation",
                             "test",  "testing",  "dev", "eval"};

bool is_hidden(const fs::path& path) { return path.filename().native().front() == '.'; }

/// The first `most` entries of a folder, sorted, but for hidden ones: folders, or all else. None
/// where it cannot be read: its reader reports why.
std::vector<fs::path> entries_of(const fs::path& folder, bool folders,
                                 std::size_t most = std::string::npos) {
  std::vector<fs::path> found;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && found.size() < most; entry.increment(error))
    if (!is_hidden(entry->path()) && entry->is_directory(ignored) == folders)
      found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> folder_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& path : entries_of(folder, true)) names.push_back(path.filename().string());
  return names;
}

bool has_name_of_a_split(const fs::path& folder) {
  std::string name = folder.filename().string();
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kSplits.begin(), kSplits.end(), name) != kSplits.end();
}

/// The folders in a folder that are splits of data by what is in them: folders of classes, and no
/// image. One folder is enough where the name is a split's too; else each of them must have two,
/// as a class may keep its images in a folder.
std::vector<std::string> splits_in(const std::string& folder) {
  std::vector<std::string> named;
  std::vector<std::string> all;
  const std::vector<fs::path> parts = entries_of(folder, true);
  for (const fs::path& part : parts) {
    const bool has_files = !entries_of(part, false, 1).empty();
    const std::size_t folders = has_files ? 0 : entries_of(part, true, 2).size();
    if (folders > 0 && has_name_of_a_split(part)) named.push_back(part.filename().string());
    if (folders > 1) all.push_back(part.filename().string());
  }
  return named.empty() && all.size() == parts.size() ? all : named;
}

/// "; DIR/valid has classes of train/ and is not used" for the folders next to a training folder.
std::string text_of_unused(const std::string& folder, const std::string& train) {
  const std::vector<std::string> classes = folder_names(train);
  std::string text;
  for (const fs::path& part : entries_of(folder, true)) {
    const std::vector<std::string> own = folder_names(part);
    if (part == fs::path(train) || own.empty() ||
        !std::includes(classes.begin(), classes.end(), own.begin(), own.end()))
      continue;
    text += fmt::format("; {} has the same classes and is not used: --val-dir may name it",
                        part.string());
  }
  return text;
}

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
           "keep encoded images in memory after their first read; a packed file is then read in "
           "windows of 8 MiB")
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
           "turn images as the orientation in their EXIF or XMP data says (as Pillow's "
           "exif_transpose); off: as torchvision, which ignores it")
      .only_with(images);
}

void find_data(SourceOptions& options, bool trains, bool validates) {
  const std::string& folder = options.data_dir;
  if (folder.empty()) return;
  const std::string train = part_of(folder, "train");
  if (trains) options.train_dir = train.empty() ? folder : train;
  const bool guesses = trains && train.empty();
  if (const auto splits = guesses ? splits_in(folder) : std::vector<std::string>(); !splits.empty())
    throw UsageError(fmt::format(
        "--data-dir {0}: there is no train/ in it, and {1} hold{2} folders and no images, as "
        "splits "
        "of data do: rename them to train and val, or name them with --train-dir and --val-dir. If "
        "they are classes: --train-dir {0}",
        folder, fmt::join(splits, ", "), splits.size() == 1 ? "s" : ""));
  if (!validates || !options.val_dir.empty()) return;
  if (!trains || !train.empty()) options.val_dir = part_of(folder, "val");
  if (!options.val_dir.empty()) return;
  if (!trains)
    throw UsageError(fmt::format("--data-dir {}: there is no val/ or val.pack in it", folder));
  options.remark = fmt::format("--data-dir {}: nothing is validated: there is no {}{}", folder,
                               train.empty() ? "train/ with val/ next to it" : "val/ or val.pack",
                               text_of_unused(folder, train));
}

}  // namespace shakedown::training
