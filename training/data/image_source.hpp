// Where the encoded images of a dataset lie: the files of a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_folder.hpp"

namespace shakedown::training {

/// Seconds that one thread spent in each stage of the input pipeline.
struct StageTimes {
  double open_s = 0;
  double read_s = 0;
  double decode_s = 0;
  double augment_s = 0;
};

/// Encoded images with a label each, numbered from 0. Constant: any thread may read any image.
class ImageSource {
 public:
  virtual ~ImageSource() = default;

  virtual std::size_t size() const = 0;
  virtual std::int32_t label(std::size_t index) const = 0;
  /// What messages call the image: the path of its file.
  virtual std::string name(std::size_t index) const = 0;
  /// What messages call the whole: the path of the folder.
  virtual const std::string& root() const = 0;
  /// Replaces `bytes` by the encoded image and adds to `times` what that took. Throws UsageError
  /// with the reason only: the caller names the image.
  virtual void read(std::size_t index, std::vector<std::uint8_t>& bytes,
                    StageTimes& times) const = 0;
};

/// Each image is a file.
class FolderSource final : public ImageSource {
 public:
  explicit FolderSource(ImageFolder folder) : folder_(std::move(folder)) {}

  std::size_t size() const override { return folder_.samples.size(); }
  std::int32_t label(std::size_t index) const override { return folder_.samples[index].label; }
  std::string name(std::size_t index) const override { return folder_.samples[index].path; }
  const std::string& root() const override { return folder_.root; }
  void read(std::size_t index, std::vector<std::uint8_t>& bytes, StageTimes& times) const override;

  const ImageFolder& folder() const { return folder_; }

 private:
  ImageFolder folder_;
};

}  // namespace shakedown::training
