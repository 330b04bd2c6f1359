#include "training/data/transform.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {
namespace {

// Where torchvision rounds it does so in Python, halves to even, as lrint does.
int rounded(double value) { return static_cast<int>(std::lrint(value)); }

double uniform(Random& random, double low, double high) {
  return low + (high - low) * random.uniform();
}

/// In [0, last].
int offset(Random& random, int last) {
  return static_cast<int>(random.below(static_cast<std::size_t>(last) + 1));
}

}  // namespace

Region random_resized_crop(Size image, Random& random) {
  constexpr double kMinScale = 0.08, kMaxScale = 1, kMinRatio = 3.0 / 4, kMaxRatio = 4.0 / 3;
  const auto [width, height] = image;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = uniform(random, kMinScale, kMaxScale) * width * height;
    const double ratio = std::exp(uniform(random, std::log(kMinRatio), std::log(kMaxRatio)));
    const int w = rounded(std::sqrt(area * ratio));
    const int h = rounded(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const int y = offset(random, height - h);
    const int x = offset(random, width - w);
    return {x, y, w, h};
  }
  // the largest allowed shape in the centre; at least a pixel, which torchvision does not promise
  const int w = std::clamp(rounded(height * kMaxRatio), 1, width);
  const int h = std::clamp(rounded(width / kMinRatio), 1, height);
  return {(width - w) / 2, (height - h) / 2, w, h};
}

Crop random_crop(Size image, const TransformSettings& settings, Random& random) {
  Crop crop{whole(image)};
  if (settings.augmentation == Augmentation::resized_crop)
    crop.region = random_resized_crop(image, random);
  if (settings.augmentation != Augmentation::none && settings.flip)
    crop.mirror = random.uniform() < 0.5;
  return crop;
}

void Transform::operator()(const Image& image, bool mirror, Random& random,
                           std::span<std::uint8_t> out) {
  const Size square{settings_.image_size, settings_.image_size};
  if (settings_.augmentation == Augmentation::none && settings_.center_crop)
    return center_crop(image, out);
  if (settings_.augmentation == Augmentation::shift) return shift(image, mirror, random, out);
  resize_(image, square, whole(square), mirror, out);
}

/// torchvision's Resize and CenterCrop.
void Transform::center_crop(const Image& image, std::span<std::uint8_t> out) {
  const int size = settings_.image_size;
  const int shorter = settings_.resize > 0 ? settings_.resize : rounded(size * 256.0 / 224);
  const auto [width, height] = image.size();
  const auto scaled = [&, least = std::min(width, height)](int side) {
    return static_cast<int>(std::int64_t{shorter} * side / least);
  };
  const Size resized{scaled(width), scaled(height)};
  const Region window{rounded((resized.width - size) / 2.0), rounded((resized.height - size) / 2.0),
                      size, size};
  resize_(image, resized, window, false, out);
}

/// torchvision's RandomCrop(size, padding=size / 8): what moves in is black.
void Transform::shift(const Image& image, bool mirror, Random& random,
                      std::span<std::uint8_t> out) {
  const int size = settings_.image_size;
  const int padding = size / 8;
  unshifted_.resize(out.size());
  resize_(image, {size, size}, whole({size, size}), mirror, unshifted_);

  const int down = offset(random, 2 * padding) - padding;  // where out's corner lies in unshifted_
  const int right = offset(random, 2 * padding) - padding;
  std::fill(out.begin(), out.end(), std::uint8_t{0});
  const int width = size - std::abs(right);
  for (int y = std::max(0, -down); y < size - std::max(0, down); ++y) {
    const int from = (y + down) * size + std::max(0, right);
    const int to = y * size + std::max(0, -right);
    std::copy_n(unshifted_.begin() + std::ptrdiff_t{3} * from, 3 * width,
                out.begin() + std::ptrdiff_t{3} * to);
  }
}

namespace {

/// auto resolved: photographs are cropped, small images shifted.
Augmentation augmentation_of(const TransformOptions& options, int image_size) {
  if (options.augment == "none") return Augmentation::none;
  if (options.augment == "crop" || (options.augment == "auto" && image_size >= 160))
    return Augmentation::resized_crop;
  return Augmentation::shift;
}

}  // namespace

void declare_options(OptionSet& options, TransformOptions& values) {
  options
      .add("--augment", values.augment,
           "auto: crop at 160 pixels and more, else shift; both also flip; none: as in validation")
      .one_of({"auto", "none", "shift", "crop"})
      .only_with({"--data-dir", "--train-dir", "--val-dir"});
  options.refuse("--scaled-decode",
                 "it changed pixels, and gave 0.98 to 1.04 of the images/s "
                 "(results/0.2/cpu/scaled-decode.jsonl)");
}

void declare_validation_options(OptionSet& options, TransformOptions& values) {
  options
      .add(
          "--val-resize", values.val_resize,
          "length of the shorter side from which validation cuts the centre, from 160 pixels on or "
          "with --augment crop or none; newer torchvision recipes use 232")
      .at_least(1)
      .at_most(16384)
      .only_where("--augment", {"auto", "none", "crop"})
      .only_with({"--data-dir", "--val-dir"})
      .default_text("256/224 of the image size");
}

TransformSettings training_transform(const TransformOptions& options, int image_size) {
  TransformSettings settings = validation_transform(options, image_size);
  settings.augmentation = augmentation_of(options, image_size);
  return settings;
}

TransformSettings validation_transform(const TransformOptions& options, int image_size) {
  TransformSettings settings;
  settings.image_size = image_size;
  settings.center_crop = augmentation_of(options, image_size) != Augmentation::shift;
  settings.resize = options.val_resize;
  if (options.val_resize > 0 && !settings.center_crop)
    throw UsageError(fmt::format(
        "--val-resize {} needs --augment crop or none: with shift the whole image is scaled",
        options.val_resize));
  if (options.val_resize > 0 && options.val_resize < image_size)
    throw UsageError(fmt::format("--val-resize {} is less than --image-size {}", options.val_resize,
                                 image_size));
  return settings;
}

}  // namespace shakedown::training
