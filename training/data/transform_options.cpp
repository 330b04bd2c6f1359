#include "training/data/transform_options.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::training {
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
  options
      .add(
          "--scaled-decode", values.scaled_decode,
          "auto: decode a training JPEG's crop of at least twice the image size to 1/2, 1/4 or "
          "1/8, which is faster and changes pixels; its effect on accuracy is in docs/training.md; "
          "off: torchvision's pixels")
      .one_of({"auto", "off"})
      .only_where("--augment", {"auto", "crop"})
      .only_with({"--data-dir", "--train-dir"});
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
  settings.scaled_decode =
      settings.augmentation == Augmentation::resized_crop && options.scaled_decode == "auto";
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
