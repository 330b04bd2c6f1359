// From a decoded image to the square one that the network sees.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/hash.hpp"
#include "training/data/image.hpp"
#include "training/data/resize.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

enum class Augmentation {
  none,   // validation: nothing is random
  shift,  // small images (MNIST, CIFAR): the whole image, moved by up to an eighth of its size
  resized_crop,  // photographs: torchvision's RandomResizedCrop with its default scale and ratio
};

struct TransformSettings {
  int image_size = 224;
  Augmentation augmentation = Augmentation::none;
  bool flip = true;         // with an augmentation: mirror every other image
  bool center_crop = true;  // without: shorter side to `resize`, then the centre;
                            // false stretches the whole image to the square
  int resize = 0;           // with center_crop; 0: 256/224 of image_size
  bool exif = false;        // before: turn the image as its EXIF orientation says
};

/// The part of a width x height image that torchvision's RandomResizedCrop(scale=(0.08, 1),
/// ratio=(3/4, 4/3)) cuts out.
Region random_resized_crop(Size image, Random& random);

/// The part of an image that a sample is made of.
struct Crop {
  Region region;
  bool mirror = false;
};

/// Drawn from `random` for an image of this size; the whole image where the augmentation is not
/// resized_crop.
Crop random_crop(Size image, const TransformSettings& settings, Random& random);

/// One per thread: it keeps its working memory.
class Transform {
 public:
  explicit Transform(const TransformSettings& settings) : settings_(settings) {}

  /// Fills `out`, image_size x image_size x 3, with the crop whose pixels are `image`. What else
  /// is random is drawn from `random` alone.
  void operator()(const Image& image, bool mirror, Random& random, std::span<std::uint8_t> out);

 private:
  void center_crop(const Image& image, std::span<std::uint8_t> out);
  void shift(const Image& image, bool mirror, Random& random, std::span<std::uint8_t> out);

  TransformSettings settings_;
  Resizer resize_;
  std::vector<std::uint8_t> unshifted_;
};

// Options about what is made of each image.

struct TransformOptions {
  std::string augment = "auto";
  int val_resize = 0;  // 0: 256/224 of the image size
};
void declare_options(OptionSet& options, TransformOptions& values);
void declare_validation_options(OptionSet& options, TransformOptions& values);

/// Of training images.
TransformSettings training_transform(const TransformOptions& options, int image_size);
/// Of validation images. Throws UsageError naming the option that cannot work.
TransformSettings validation_transform(const TransformOptions& options, int image_size);

}  // namespace shakedown::training
