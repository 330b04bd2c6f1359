// Scaling images.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/image.hpp"

namespace shakedown::training {

struct Size {
  int width;
  int height;
};

/// Pixels [x, x + width) x [y, y + height) of an image.
struct Region {
  int x;
  int y;
  int width;
  int height;
};

/// Bilinear with antialiasing, bit for bit Pillow 10's Image.resize(size, BILINEAR): a triangle
/// filter, as wide as a source pixel when enlarging and as an output pixel when shrinking, applied
/// along rows and then columns with 8 bits in between. (Pillow 13 at times takes columns first,
/// which differs by one level.) One per thread: it keeps its working memory.
class Resizer {
 public:
  /// Scales the region `from` of `image` (nothing outside it is read) to `to`, and of that writes
  /// only `window` to `out`, H W 3.
  void operator()(const Image& image, Region from, Size to, Region window,
                  std::span<std::uint8_t> out);

 private:
  /// For each output coordinate, the source coordinates it is a weighted sum of.
  struct Filter {
    struct Taps {
      int first;  // source coordinate
      int count;
      std::size_t weights;  // where they start
    };
    std::vector<Taps> taps;
    std::vector<std::int32_t> weights;  // fixed point

    void set(int from, int to, int begin, int count);
  };

  Filter across_;
  Filter down_;
  std::vector<std::uint8_t> rows_;  // source rows, scaled across
  std::vector<std::int32_t> sums_;  // one output row
};

}  // namespace shakedown::training
