// One sample, from its encoded image to the pixels that the network sees.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "training/data/bad_images.hpp"
#include "training/data/device_decoder.hpp"
#include "training/data/image_source.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// An encoded image that the device decodes.
struct EncodedSample {
  std::vector<std::uint8_t> file;
  Crop crop;
};

/// One per thread: it keeps its working memory. The source and `bad` must outlive it.
class SampleReader {
 public:
  SampleReader(const ImageSource& source, const TransformSettings& settings, BadImages& bad)
      : source_(source), bad_(bad), settings_(settings), transform_(settings) {}

  /// Reads, decodes and transforms the sample into `out`, image_size x image_size x 3, and returns
  /// its label. What is random is drawn from `random_seed` alone. A bad image is noted and replaced
  /// (ImageSource::replacement); throws UsageError as BadImages::note does.
  std::int32_t read(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out);

  /// The same, but what `decoder` supports is left to it: then `encoded` has the file, and the crop
  /// that read() would make. Whether it does depends on the file alone.
  struct Outcome {
    std::int32_t label;
    bool left_to_decoder;
  };
  Outcome read(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
               const DeviceDecoder& decoder, EncodedSample& encoded);

  /// What it cost since the last call of this.
  StageTimes take_times() { return std::exchange(times_, {}); }

 private:
  /// The image with which `make` succeeds, after it was read into encoded_: the one at `index`, or
  /// the first good one that may replace it.
  std::size_t first_good(std::size_t index, const std::function<void()>& make);
  /// Of the encoded image, if the device may decode it.
  std::optional<Size> size_for(const DeviceDecoder& decoder) const;
  void decode(std::uint64_t random_seed, std::span<std::uint8_t> out);

  const ImageSource& source_;
  BadImages& bad_;
  const TransformSettings settings_;
  Transform transform_;
  StageTimes times_;
  std::vector<std::uint8_t> encoded_;
};

/// Whether a device decoder can make what these settings ask of training images.
inline bool device_can_transform(const TransformSettings& settings) {
  return settings.augmentation == Augmentation::resized_crop;
}

}  // namespace shakedown::training
