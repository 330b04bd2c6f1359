// Where the encoded images of a dataset lie: in the files of a folder, in one packed file
// (pack_source.hpp), in memory (cached_source.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_folder.hpp"
#include "training/data/input_file.hpp"

namespace shakedown::training {

/// Seconds that one thread spent in each stage of the input pipeline.
struct StageTimes {
  double open_s = 0;
  double read_s = 0;
  double decode_s = 0;
  double augment_s = 0;
};

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
                    StageTimes& times) const = 0;

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
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, StageTimes& times) const override;

 private:
  ImageFolder folder_;
  ReadRetries retries_;
};

}  // namespace shakedown::training
