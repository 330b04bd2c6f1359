// Where images come from: a folder with one sub-folder per class, or a packed file.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mpi_session.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// How often a read is repeated, and how long after the first error; then four times as long each.
struct ReadRetries {
  int attempts = 5;
  std::chrono::milliseconds first_wait{100};  // 8.5 s in all: a network file system recovers
};
/// Calls `read` again where it throws a ReadError. Throws InconclusiveError naming the file where
/// it always does.
void read_patiently(const std::string& file, const ReadRetries& retries,
                    const std::function<void()>& read);

/// A file that any thread reads at any place. Errors are UsageErrors with the reason only: the
/// caller names the file.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// When it was opened.
  std::uint64_t size() const { return size_; }
  /// Fills `to` with the bytes from `offset` on.
  void read(std::uint64_t offset, std::span<std::uint8_t> to) const;
  /// Stops the kernel from reading more than what is requested.
  void expect_random_reads() const;

 private:
  int descriptor_;
  std::uint64_t size_ = 0;
};

// A folder of images with one sub-folder a class, as torchvision's ImageFolder reads it.

struct Sample {
  std::string path;  // below ImageFolder::root
  int label;         // index into ImageFolder::classes
};

struct ImageFolder {
  std::string root;
  std::vector<std::string> classes;      // names of the sub-folders, sorted
  std::vector<Sample> samples;           // by class, then folder, then file name
  std::map<std::string, long> left_out;  // files of other kinds, by extension in lower case
};

/// Lists the .jpg, .jpeg and .png files (any case) below each class folder; opens none of them.
/// Hidden files and folders, whose names start with a dot, are passed over. Throws UsageError
/// naming the folder that is missing, unreadable, or without classes or images, and the link that
/// leads back to a folder around it.
ImageFolder scan_image_folder(const std::string& root);

/// " (left out: 3 .gif, 1 .txt)", or "".
std::string text_of_left_out(const ImageFolder& folder);

/// "a, b and 3 more": the first few of these names.
std::string first_of(std::span<const std::string> names, std::size_t most = 5);

/// "; not in `where`: a, b" with the first few names of `some` that `others` lacks; "" when there
/// are none. Both are sorted. Reports names in Unicode's form NFD, which look like others.
std::string names_missing(const std::vector<std::string>& some,
                          const std::vector<std::string>& others, const std::string& where);

// Where the encoded images of a dataset lie: in the files of a folder, in one packed file
// (pack.hpp), in memory.

/// The cost of a rank's input, stage by stage: sums since the start of the run, over all workers;
/// the difference of two is a window's. Seconds, but for the images.
struct InputTimes {
  double open_s = 0;
  double read_s = 0;
  double decode_s = 0;
  double augment_s = 0;
  double stall_s = 0;          // the compute stream waited for a batch
  double copy_s = 0;           // host memory to device memory; with DeviceCrops, also their scaling
  double device_decode_s = 0;  // DeviceDecoder::decode
  double images = 0;           // that the workers made or, encoded, passed to the device
  double device_images = 0;    // of these, left to the device
};
InputTimes operator+(const InputTimes& a, const InputTimes& b);
InputTimes operator-(const InputTimes& a, const InputTimes& b);

/// Encoded images with a label each, numbered from 0 in the order of ImageFolder. Constant: any
/// thread may read any image.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual std::size_t size() const = 0;
  /// Index into classes().
  virtual std::int32_t label(std::size_t index) const = 0;
  /// The path of the image's file below the folder: "dog/7.jpg".
  virtual std::string path(std::size_t index) const = 0;
  /// The name of the whole in messages: the path of the folder or of the packed file.
  virtual const std::string& root() const = 0;
  virtual const std::vector<std::string>& classes() const = 0;
  /// A remark on the whole for people, as " (left out: 3 .gif)"; or "".
  virtual std::string remark() const { return ""; }
  /// Differs where other images are listed, as far as that is known without reading them: other
  /// paths, classes or order; of packed files also other content.
  virtual std::uint64_t checksum() const { return listing_checksum(); }
  /// Replaces `bytes` by the encoded image and adds to `times` what that took. Throws UsageError
  /// where the image is bad, with the reason only: the caller names the image; InconclusiveError
  /// where it cannot be read, after some attempts.
  virtual void read(std::size_t index, std::vector<std::uint8_t>& bytes,
                    InputTimes& times) const = 0;

  /// The name of the image in messages.
  std::string name(std::size_t index) const;
  /// Of the paths and classes in their order: a folder and its packed file have the same.
  std::uint64_t listing_checksum() const;
  /// The image that replaces a bad one, for attempt 0, 1, ...: the image itself, then those that
  /// follow it. Depends on nothing else, so that all ranks and all runs agree.
  std::size_t replacement(std::size_t index, std::size_t attempt) const {
    return (index + attempt) % size();
  }
};

/// "6000 images of 10 classes in DIR", and the remark.
std::string text_of(const ImageSource& source);

/// Throws UsageError naming the classes that only one of the two has.
void check_same_classes(const ImageSource& training, const ImageSource& validation);

/// Each image is a file.
class FolderSource final : public ImageSource {
 public:
  explicit FolderSource(ImageFolder folder, ReadRetries retries = {})
      : folder_(std::move(folder)), retries_(retries) {}

  std::size_t size() const override { return folder_.samples.size(); }
  std::int32_t label(std::size_t index) const override { return folder_.samples[index].label; }
  std::string path(std::size_t index) const override { return folder_.samples[index].path; }
  const std::string& root() const override { return folder_.root; }
  const std::vector<std::string>& classes() const override { return folder_.classes; }
  std::string remark() const override { return text_of_left_out(folder_); }
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, InputTimes& times) const override;

 private:
  ImageFolder folder_;
  ReadRetries retries_;
};

// Images that cannot be read or decoded: named, counted, and refused when they are too many.

/// Those of one source. Any thread may call it.
class BadImages {
 public:
  /// `report` prints a line about each of the first few.
  BadImages(long most_allowed, std::function<void(const std::string&)> report);

  /// Notes that the image is bad, for this reason; each image counts once. Throws UsageError naming
  /// it and those before when more are bad than allowed.
  void note(const ImageSource& source, std::size_t index, const std::string& reason);

  /// Counts those that a training met before it was interrupted. Throws UsageError where they are
  /// more than allowed.
  void restore(const std::vector<std::size_t>& indices);

  long most_allowed() const { return most_allowed_; }
  long count() const;
  /// In rising order.
  std::vector<std::size_t> indices() const;

 private:
  const long most_allowed_;
  const std::function<void(const std::string&)> report_;
  mutable std::mutex mutex_;
  std::set<std::size_t> indices_;
};

/// Those of all ranks: each rank knows those of its own shards, which change with the epoch.
/// Collective.
std::set<std::size_t> over_ranks(const BadImages& mine, const MpiSession& session);

/// "a.jpg, b.jpg and 3 more": the first few of these images by name.
std::string names_of(const ImageSource& source, const std::set<std::size_t>& indices);

// Options about which images there are, and where they lie.

struct DataOptions {
  std::string data_dir;   // or train_dir, or neither: synthetic
  std::string train_dir;  // a folder or a packed file
  std::string val_dir;
  int max_bad_images = 0;
  TransformOptions transform;
  std::string workers = "auto";  // threads per rank, or a number
  int prefetch = 4;              // batches
  std::string decoder = "auto";
  std::string remark;  // of find_data: what is not validated; else empty

  bool synthetic() const { return data_dir.empty() && train_dir.empty(); }
};
void declare_options(OptionSet& options, DataOptions& values);
/// Loader threads of a rank that may use this many cores.
int workers_of(const DataOptions& options, int cores);

/// Sets train_dir and val_dir, as far as the run needs them and val_dir is not given, to what
/// data_dir has: train.pack or train/, val.pack or val/. Looks at the disk. Throws UsageError where
/// what is trained on or evaluated is missing.
void find_data(DataOptions& options, bool trains, bool validates);

}  // namespace shakedown::training
