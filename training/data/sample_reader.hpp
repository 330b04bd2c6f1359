// One sample, from its encoded image to the pixels that the network sees.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "training/data/bad_images.hpp"
#include "training/data/crops.hpp"
#include "training/data/device_decoder.hpp"
#include "training/data/image_source.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {

/// An encoded image that the device decodes.
struct EncodedSample {
  std::vector<std::uint8_t> file;
  Crop crop;
};

/// What may be left to the device, and what it gets.
struct LeftToDevice {
  const DeviceDecoder* decoder = nullptr;  // may decode what it supports
  CropMemory* crops = nullptr;             // has what it scales
  EncodedSample encoded;                   // where it decodes
  DecodedCrop decoded;                     // where it only scales
};

/// One per thread: it keeps its working memory. The source and `bad` must outlive it.
class SampleReader {
 public:
  SampleReader(const ImageSource& source, const TransformSettings& settings, BadImages& bad)
      : source_(source), bad_(bad), settings_(settings), transform_(settings) {}

  /// Who made the pixels, and what the sample is.
  struct Outcome {
    std::int32_t label;
    bool left_to_decoder;
    std::size_t index;  // the requested one, or of what replaces it
  };
  /// Reads, decodes and transforms the sample into `out`, image_size x image_size x 3. What is
  /// random is drawn from `random_seed` alone. Where there is a decoder, what it supports is left
  /// to it, with the crop that would be made here. Where there is memory for crops, the others are
  /// left in it and not in `out`: as they were decoded, or scaled where it has no place for more. A
  /// bad image is noted and replaced (ImageSource::replacement); throws UsageError as
  /// BadImages::note does. An image that cannot be read may be sound, so none replaces it:
  /// ImageSource::read's error passes.
  Outcome read(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
               LeftToDevice* left = nullptr);

  /// The cost since the last call of this.
  StageTimes take_times() { return std::exchange(times_, {}); }

 private:
  bool read_image(std::size_t index, std::uint64_t random_seed, std::span<std::uint8_t> out,
                  LeftToDevice* left);
  std::optional<Size> size_for(const DeviceDecoder& decoder) const;
  const Image& decode(Crop& crop, Random& random);
  DecodedCrop place(const Image& image, bool mirror, Random& random, CropMemory& crops);

  const ImageSource& source_;
  BadImages& bad_;
  const TransformSettings settings_;
  ImageDecoder decoder_;
  Image turned_;
  Transform transform_;
  StageTimes times_;
  std::vector<std::uint8_t> encoded_;
};

/// Whether a device can make what these settings ask of training images: it only scales crops.
inline bool device_can_transform(const TransformSettings& settings) {
  return settings.augmentation == Augmentation::resized_crop;
}

}  // namespace shakedown::training
