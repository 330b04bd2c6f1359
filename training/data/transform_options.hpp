// Options about what is made of each image.
#pragma once

#include <string>

#include "training/data/transform.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct TransformOptions {
  std::string augment = "auto";
  std::string scaled_decode = "off";
  int val_resize = 0;  // 0: 256/224 of the image size
};
void declare_options(OptionSet& options, TransformOptions& values);
void declare_validation_options(OptionSet& options, TransformOptions& values);

/// Of training images.
TransformSettings training_transform(const TransformOptions& options, int image_size);
/// Of validation images. Throws UsageError naming the option that cannot work.
TransformSettings validation_transform(const TransformOptions& options, int image_size);

}  // namespace shakedown::training
