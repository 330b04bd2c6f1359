#include "training/data/image_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "common/error.hpp"

namespace shakedown {
namespace {

namespace fs = std::filesystem;

constexpr std::array kExtensions{".jpg", ".jpeg", ".png"};

bool has_image_name(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

std::vector<std::string> class_folders(const std::string& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(root))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// Sorted by folder, then by name: torchvision's order, which puts a folder's files before those of
/// its sub-folders.
std::vector<fs::path> images_below(const fs::path& folder) {
  std::vector<fs::path> paths;
  constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, kFollow))
    // a dangling link is listed too: better an error that names it than an image silently missing
    if (has_image_name(entry.path()) && !entry.is_directory()) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    const int order = a.parent_path().native().compare(b.parent_path().native());
    return order != 0 ? order < 0 : a.filename().native() < b.filename().native();
  });
  return paths;
}

/// The names in `some` that `others` lacks, the first few of them spelt out; "" when there are
/// none.
std::string names_missing(const std::vector<std::string>& some,
                          const std::vector<std::string>& others, const ImageFolder& folder) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> missing;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::back_inserter(missing));
  if (missing.empty()) return "";
  std::string text = fmt::format("; not in {}: ", folder.root);
  for (std::size_t i = 0; i < std::min(kShown, missing.size()); ++i)
    text += (i > 0 ? ", " : "") + missing[i];
  if (missing.size() > kShown) text += fmt::format(" and {} more", missing.size() - kShown);
  return text;
}

}  // namespace

ImageFolder scan_image_folder(const std::string& root) {
  ImageFolder folder{.root = root, .classes = {}, .samples = {}};
  fs::path reading = root;
  try {
    folder.classes = class_folders(root);
    for (std::size_t label = 0; label < folder.classes.size(); ++label) {
      reading = fs::path(root) / folder.classes[label];
      const std::vector<fs::path> images = images_below(reading);
      if (images.empty())
        throw UsageError(fmt::format("class folder {}: there is no .jpg, .jpeg or .png file in it",
                                     reading.string()));
      for (const fs::path& path : images)
        folder.samples.push_back({path.string(), static_cast<int>(label)});
    }
  } catch (const fs::filesystem_error& error) {
    throw UsageError(fmt::format("image folder {} cannot be read: {}", reading.string(),
                                 error.code().message()));
  }
  if (folder.classes.empty())
    throw UsageError(
        fmt::format("image folder {}: it has no sub-folders, and each class should be one", root));
  return folder;
}

void check_same_classes(const ImageFolder& training, const ImageFolder& validation) {
  if (training.classes == validation.classes) return;
  throw UsageError("the training and the validation folder must have the same classes" +
                   names_missing(training.classes, validation.classes, validation) +
                   names_missing(validation.classes, training.classes, training));
}

}  // namespace shakedown
