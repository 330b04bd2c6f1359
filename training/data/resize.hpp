// Scaling images.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/image.hpp"
#include "training/data/resize_passes.hpp"

namespace shakedown::training {

/// Bilinear with antialiasing, bit for bit Pillow 10's Image.resize(size, BILINEAR): a triangle
/// filter, as wide as a source pixel when enlarging and as an output pixel when shrinking, applied
/// along rows and then columns with 8 bits in between. (Pillow 13 at times takes columns first,
/// which differs by one level.) One per thread: it keeps its working memory.
class Resizer {
 public:
  explicit Resizer(const ResizePasses& passes = fastest_passes()) : passes_(passes) {}

  /// Scales `image` to `to`, and of that writes only `window`, mirrored if requested, to `out`,
  /// H W 3.
  void operator()(const Image& image, Size to, Region window, bool mirror,
                  std::span<std::uint8_t> out);

 private:
  ResizePasses passes_;
  ResizeFilter across_;
  ResizeFilter down_;
  std::vector<std::uint8_t> rows_;  // source rows, scaled across
};

}  // namespace shakedown::training
