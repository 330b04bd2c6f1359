// The options that choose and tune a network.
#pragma once

#include <string>

#include "resnet/units.hpp"

namespace shakedown {

class OptionSet;

/// Height and width of images, whose shapes count in int.
constexpr int kLeastImageSize = 32;
constexpr int kMostImageSize = 8192;

struct ModelOptions {
  std::string model = "resnet50";
  std::string weights;  // a .safetensors file, or empty: seeded
  int image_size = 224;
  int classes = 1000;
  std::string precision = "auto";
  double label_smoothing = 0;
  bool autotune = true;
  bool deterministic = false;
  bool recompute = false;
  std::string fusion = "auto";
  std::string plan_cache = "auto";
};
void declare_options(OptionSet& options, ModelOptions& values);
/// The tuning that the options request. Throws UsageError where they contradict one another.
Tuning tuning_of(const ModelOptions& options);

}  // namespace shakedown
