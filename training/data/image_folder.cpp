#include "training/data/image_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <iterator>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

namespace fs = std::filesystem;

constexpr std::array kExtensions{".jpg", ".jpeg", ".png"};

std::string extension_of(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

bool is_hidden(const fs::path& path) { return path.filename().native().front() == '.'; }

std::vector<std::string> class_folders(const std::string& root) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (is_hidden(entry.path())) continue;
    if (entry.is_symlink() && !entry.exists())  // perhaps a class, which must not be missed
      throw UsageError(
          fmt::format("image folder {}: the link {} leads nowhere", root, entry.path().string()));
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Throws UsageError where a linked folder below `top` is one that it lies in: its images would be
/// there again and again.
void refuse_loop(const fs::path& link, const fs::path& top) {
  const fs::path target = fs::canonical(link);
  for (fs::path around = link.parent_path();; around = around.parent_path()) {
    if (fs::canonical(around) == target)
      throw UsageError(fmt::format("class folder {}: the link {} leads back to a folder it lies in",
                                   top.string(), link.string()));
    if (around == top) return;
  }
}

/// Sorted by folder, then by name: torchvision's order, which puts a folder's files before those of
/// its sub-folders. Counts what it leaves out.
std::vector<fs::path> images_below(const fs::path& folder, std::map<std::string, long>& left_out) {
  std::vector<fs::path> paths;
  constexpr auto kFollow = fs::directory_options::follow_directory_symlink;
  fs::recursive_directory_iterator entries(folder, kFollow);
  for (const fs::directory_entry& entry : entries) {
    const bool is_folder = entry.is_directory();
    if (is_hidden(entry.path())) {
      if (is_folder) entries.disable_recursion_pending();
    } else if (is_folder) {
      if (entry.is_symlink()) refuse_loop(entry.path(), folder);
    } else if (const std::string extension = extension_of(entry.path());
               std::count(kExtensions.begin(), kExtensions.end(), extension) > 0) {
      // a dangling link is listed too: better an error that names it than an image silently missing
      paths.push_back(entry.path());
    } else {
      ++left_out[extension];
    }
  }
  std::sort(paths.begin(), paths.end(), [](const fs::path& a, const fs::path& b) {
    const int order = a.parent_path().native().compare(b.parent_path().native());
    return order != 0 ? order < 0 : a.filename().native() < b.filename().native();
  });
  return paths;
}

/// Whether a name holds combining characters in UTF-8: U+0300 to U+036F, and kana's voicing marks.
/// macOS writes names so (Unicode's form NFD); elsewhere an accented letter is one character (NFC).
bool is_decomposed(const std::string& name) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(name[at]); };
  for (std::size_t i = 0; i + 1 < name.size(); ++i) {
    if (byte(i) == 0xCC || (byte(i) == 0xCD && byte(i + 1) <= 0xAF)) return true;
    if (byte(i) == 0xE3 && byte(i + 1) == 0x82 && i + 2 < name.size() &&
        (byte(i + 2) == 0x99 || byte(i + 2) == 0x9A))
      return true;
  }
  return false;
}

}  // namespace

std::string names_missing(const std::vector<std::string>& some,
                          const std::vector<std::string>& others, const std::string& where) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> missing;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::back_inserter(missing));
  if (missing.empty()) return "";
  std::string text = fmt::format("; not in {}: ", where);
  for (std::size_t i = 0; i < std::min(kShown, missing.size()); ++i)
    text += (i > 0 ? ", " : "") + missing[i];
  if (missing.size() > kShown) text += fmt::format(" and {} more", missing.size() - kShown);
  if (std::any_of(missing.begin(), missing.end(), is_decomposed))
    text += " (with combining characters, Unicode NFD as macOS writes it: not the same as NFC)";
  return text;
}

ImageFolder scan_image_folder(const std::string& root) {
  ImageFolder folder{.root = root, .classes = {}, .samples = {}, .left_out = {}};
  fs::path reading = root;  // where the error names no path
  try {
    folder.classes = class_folders(root);
    for (std::size_t label = 0; label < folder.classes.size(); ++label) {
      reading = fs::path(root) / folder.classes[label];
      const std::vector<fs::path> images = images_below(reading, folder.left_out);
      if (images.empty())
        throw UsageError(fmt::format("class folder {}: there is no .jpg, .jpeg or .png file in it",
                                     reading.string()));
      for (const fs::path& path : images)
        folder.samples.push_back({path.lexically_relative(root).string(), static_cast<int>(label)});
    }
  } catch (const fs::filesystem_error& error) {
    const std::string path = error.path1().empty() ? reading.string() : error.path1().string();
    throw UsageError(
        fmt::format("image folder: {} cannot be read: {}", path, error.code().message()));
  }
  if (folder.classes.empty())
    throw UsageError(
        fmt::format("image folder {}: it has no sub-folders, and each class should be one", root));
  return folder;
}

std::string text_of_left_out(const ImageFolder& folder) {
  std::string text;
  for (const auto& [extension, count] : folder.left_out)
    text += fmt::format("{}{} {}", text.empty() ? " (left out: " : ", ", count,
                        extension.empty() ? "without extension" : extension);
  return text.empty() ? "" : text + ")";
}

}  // namespace shakedown::training
