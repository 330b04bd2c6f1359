// From a decoded image to the square one that the network sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/hash.hpp"
#include "training/data/image.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

/// Of each output coordinate, the neighbouring source coordinates that it is a weighted sum of: the
/// same number for all, some with the weight 0.
struct ResizeFilter {
  int taps = 0;
  std::vector<int> first;             // source coordinate of each output coordinate's first weight
  std::vector<std::int32_t> weights;  // `taps` of each

  /// The filter from `from` pixels to `to`, for the output coordinates [begin, begin + count), in
  /// reverse order if requested.
  void set(int from, int to, int begin, int count, bool reversed);
};

/// Bilinear with antialiasing, bit for bit Pillow 10's Image.resize(size, BILINEAR): a triangle
/// filter, as wide as a source pixel when enlarging and as an output pixel when shrinking, applied
/// along rows and then columns with 8 bits in between. (Pillow 13 at times takes columns first,
/// which differs by one level.) One per thread: it keeps its working memory.
class Resizer {
 public:
  /// Scales `image` to `to`, and of that writes only `window`, mirrored if requested, to `out`,
  /// H W 3.
  void operator()(const Image& image, Size to, Region window, bool mirror,
                  std::span<std::uint8_t> out);

 private:
  ResizeFilter across_;
  ResizeFilter down_;
  Image columns_, scaled_columns_, rows_, scaled_;
};

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
