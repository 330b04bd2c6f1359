#include "training/data/source.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <thread>
#include <vector>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "common/options.hpp"
#include "common/text_table.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

/// a + sign b.
InputTimes combined(InputTimes a, double sign, const InputTimes& b) {
  using Times = InputTimes;
  for (double Times::*const part :
       {&Times::open_s, &Times::read_s, &Times::decode_s, &Times::augment_s, &Times::stall_s,
        &Times::copy_s, &Times::device_decode_s, &Times::images, &Times::device_images})
    a.*part += sign * (b.*part);
  return a;
}

}  // namespace

InputTimes operator+(const InputTimes& a, const InputTimes& b) { return combined(a, 1, b); }
InputTimes operator-(const InputTimes& a, const InputTimes& b) { return combined(a, -1, b); }

std::string ImageSource::name(std::size_t index) const {
  return (std::filesystem::path(root()) / path(index)).string();
}

std::uint64_t ImageSource::listing_checksum() const {
  std::string listing;  // no name has a NUL
  for (const std::string& name : classes()) listing += name + '\0';
  for (std::size_t i = 0; i < size(); ++i)
    listing += fmt::format("{} {}", label(i), path(i)) + '\0';
  return xxh64(listing);
}

std::string text_of(const ImageSource& source) {
  return fmt::format("{} of {} in {}{}", counted(static_cast<long>(source.size()), "image"),
                     counted(std::ssize(source.classes()), "class", "es"), source.root(),
                     source.remark());
}

void check_same_classes(const ImageSource& training, const ImageSource& validation) {
  if (training.classes() == validation.classes()) return;
  throw UsageError("the training and the validation folder must have the same classes" +
                   names_missing(training.classes(), validation.classes(), validation.root()) +
                   names_missing(validation.classes(), training.classes(), training.root()));
}

void FolderSource::read(std::size_t index, std::vector<std::uint8_t>& bytes,
                        InputTimes& times) const {
  const std::string path = name(index);
  read_patiently("image " + path, retries_, [&] {
    const auto start = Clock::now();
    const InputFile file(path);
    const auto opened = Clock::now();
    bytes.resize(file.size());
    file.read(0, bytes);
    times.open_s += seconds_between(start, opened);
    times.read_s += seconds_between(opened, Clock::now());
  });
}

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
      throw UsageError(fmt::format("{}: the link {} leads nowhere", root, entry.path().string()));
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
      throw UsageError(fmt::format("{}: the link {} leads back to a folder it lies in",
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

}  // namespace

std::string first_of(std::span<const std::string> names, std::size_t most) {
  const std::size_t shown = std::min(most, names.size());
  return fmt::format("{}{}", fmt::join(names.first(shown), ", "),
                     shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "");
}

std::string names_missing(const std::vector<std::string>& some,
                          const std::vector<std::string>& others, const std::string& where) {
  std::vector<std::string> missing;
  std::set_difference(some.begin(), some.end(), others.begin(), others.end(),
                      std::back_inserter(missing));
  return missing.empty() ? "" : fmt::format("; not in {}: {}", where, first_of(missing));
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
        throw UsageError(fmt::format(
            "{}: there is no .jpg, .jpeg or .png file in this class folder", reading.string()));
      for (const fs::path& path : images)
        folder.samples.push_back({path.lexically_relative(root).string(), static_cast<int>(label)});
    }
  } catch (const fs::filesystem_error& error) {
    const std::string path = error.path1().empty() ? reading.string() : error.path1().string();
    throw UsageError(fmt::format("{}: cannot be read: {}", path, error.code().message()));
  }
  if (folder.classes.empty())
    throw UsageError(fmt::format("{}: it has no sub-folders, and each class should be one", root));
  return folder;
}

std::string text_of_left_out(const ImageFolder& folder) {
  std::string text;
  for (const auto& [extension, count] : folder.left_out)
    text += fmt::format("{}{} {}", text.empty() ? " (left out: " : ", ", count,
                        extension.empty() ? "without extension" : extension);
  return text.empty() ? "" : text + ")";
}

BadImages::BadImages(long most_allowed, std::function<void(const std::string&)> report)
    : most_allowed_(most_allowed), report_(std::move(report)) {}

void BadImages::note(const ImageSource& source, std::size_t index, const std::string& reason) {
  constexpr std::size_t kReported = 20;
  const std::string text = fmt::format("image {}: {}", source.name(index), reason);
  const std::lock_guard lock(mutex_);
  const bool is_new = indices_.insert(index).second;
  if (static_cast<long>(indices_.size()) > most_allowed_) {
    if (most_allowed_ == 0) throw UsageError(text);
    std::set<std::size_t> before = indices_;
    before.erase(index);
    throw UsageError(fmt::format("{}; --max-bad-images {}: {} were bad before: {}", text,
                                 most_allowed_, before.size(), names_of(source, before)));
  }
  if (!is_new || indices_.size() > kReported) return;
  report_(text + "; another image replaces it" +
          (indices_.size() == kReported ? "; further bad images are only counted" : ""));
}

void BadImages::restore(const std::vector<std::size_t>& indices) {
  const std::lock_guard lock(mutex_);
  indices_.insert(indices.begin(), indices.end());
  if (static_cast<long>(indices_.size()) > most_allowed_)
    throw UsageError(fmt::format("--max-bad-images {}: {} were bad before the interruption",
                                 most_allowed_, indices_.size()));
}

long BadImages::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<long>(indices_.size());
}

std::vector<std::size_t> BadImages::indices() const {
  const std::lock_guard lock(mutex_);
  return {indices_.begin(), indices_.end()};
}

std::set<std::size_t> over_ranks(const BadImages& mine, const MpiSession& session) {
  std::set<std::size_t> all;
  for (const auto& list : session.all_gather(mine.indices())) all.insert(list.begin(), list.end());
  return all;
}

std::string names_of(const ImageSource& source, const std::set<std::size_t>& indices) {
  std::vector<std::string> names;
  for (const std::size_t index : indices) names.push_back(source.name(index));
  return first_of(names);
}

namespace {

namespace fs = std::filesystem;

/// DIR/NAME.pack, or DIR/NAME, or "" if neither is there.
std::string part_of(const std::string& folder, const std::string& name) {
  std::error_code ignored;
  const fs::path path = fs::path(folder) / name;
  if (fs::is_regular_file(path.string() + ".pack", ignored)) return path.string() + ".pack";
  return fs::is_directory(path, ignored) ? path.string() : "";
}

constexpr int kMostWorkers = 1024;

/// Throws UsageError where it is neither auto nor such a number; 0 of auto.
int parse_workers(const std::string& text) {
  if (text == "auto") return 0;
  int workers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), workers);
  if (error != std::errc() || end != text.data() + text.size() || workers < 1 ||
      workers > kMostWorkers)
    throw UsageError(
        fmt::format("--workers {}: must be auto, or a number from 1 to {}", text, kMostWorkers));
  return workers;
}

}  // namespace

void declare_options(OptionSet& options, DataOptions& values) {
  options
      .add("--data-dir", values.data_dir, "folder with train/ and val/, or train.pack and val.pack")
      .metavar("DIR")
      .default_text("synthetic")
      .not_with({"--train-dir"})
      .first();
  options
      .add("--train-dir", values.train_dir,
           "folder with one sub-folder of images per class, or a packed file of it")
      .metavar("DIR")
      .default_text("synthetic");
  options.refuse("--cache",
                 "the page cache, which the ranks of a host share, keeps what was read: cat FILE "
                 ">/dev/null reads a packed file at once");
  options
      .add("--max-bad-images", values.max_bad_images,
           "training images that may be corrupt: each is named and replaced by the next one of the "
           "listing; counted over the whole training; in validation none may be; an image that "
           "cannot be read ends the run with exit code 3")
      .at_least(0)
      .only_with({"--data-dir", "--train-dir"});
  options.refuse("--exif",
                 "no record used it; as torchvision does, training ignores how a camera was held");
  declare_options(options, values.transform);
  options
      .add("--workers,--num-workers", values.workers,
           "loader threads per rank; auto: the cores that the rank may use, divided by the ranks "
           "that share them")
      .metavar("N")
      .only_with({"--data-dir", "--train-dir", "--val-dir"});
  options.add("--prefetch", values.prefetch, "batches decoded ahead")
      .at_least(1)
      .at_most(1024)
      .only_with({"--data-dir", "--train-dir", "--val-dir"});
  options
      .add(
          "--decoder", values.decoder,
          "decoder of the training images that are cropped; nvjpeg: the GPU's JPEG engines for the "
          "baseline JPEG files, and the CPU for the rest; auto: nvjpeg "
          "where there are engines and fewer than 9 workers per rank, else cpu, which is faster; "
          "a training that continues has "
          "its checkpoint's")
      .one_of({"auto", "cpu", "nvjpeg"})
      .only_with({"--data-dir", "--train-dir"});
  options.refuse("--decoder-share",
                 "no record used it; --decoder nvjpeg decodes all that its engines support");
  options.check([&] { parse_workers(values.workers); });
}

int workers_of(const DataOptions& options, int cores) {
  const int requested = parse_workers(options.workers);
  return requested > 0 ? requested : std::clamp(cores, 1, kMostWorkers);
}

void find_data(DataOptions& options, bool trains, bool validates) {
  const std::string& folder = options.data_dir;
  if (folder.empty()) return;
  const auto part = [&](const char* name) {
    std::string found = part_of(folder, name);
    if (!found.empty()) return found;
    throw UsageError(fmt::format(
        "--data-dir {0}: there is no {1}/ or {1}.pack in it; --{1}-dir names any folder", folder,
        name));
  };
  if (trains) options.train_dir = part("train");
  if (!validates || !options.val_dir.empty()) return;
  options.val_dir = trains ? part_of(folder, "val") : part("val");
  if (options.val_dir.empty())
    options.remark = fmt::format(
        "--data-dir {}: nothing is validated: there is no val/ or val.pack in it", folder);
}

namespace {

[[noreturn]] void refuse(int why) {
  throw ReadError(fmt::format("cannot be read: {}", std::strerror(why)));
}

/// Anything but a regular file is refused, and never waited for.
std::uint64_t size_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) refuse(errno);
  if (!S_ISREG(status.st_mode)) throw UsageError("cannot be read: it is no regular file");
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

void read_patiently(const std::string& file, const ReadRetries& retries,
                    const std::function<void()>& read) {
  auto wait = retries.first_wait;
  for (int attempt = 1;; ++attempt) {
    try {
      return read();
    } catch (const ReadError& error) {
      if (attempt == retries.attempts)
        throw InconclusiveError(fmt::format("{}: {}, {} times", file, error.what(), attempt));
    }
    std::this_thread::sleep_for(wait);
    wait *= 4;
  }
}

InputFile::InputFile(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (descriptor_ < 0) refuse(errno);
  try {
    size_ = size_of(descriptor_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::uint64_t offset, std::span<std::uint8_t> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(errno);
    if (got == 0) throw ReadError("cannot be read: the file ends early");
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void InputFile::expect_random_reads() const {
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);  // advice: nothing depends on it
}

}  // namespace shakedown::training
