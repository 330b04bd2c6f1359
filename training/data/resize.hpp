// Scaling images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "training/data/image.hpp"

namespace shakedown::training {

// The two passes of a Resizer: along rows and along columns.

/// For each output coordinate, the neighbouring source coordinates it is a weighted sum of, in
/// pairs. Their number is the same for all: some have the weight 0, and of these the last may be
/// the coordinate after the end of the source.
struct ResizeFilter {
  // PIL's: 8 bits of pixel and 2 of headroom leave 22 of the 32 to the weights.
  static constexpr int kWeightBits = 22;
  static constexpr int kLowBits = 15;

  /// Two weights of low + 2^15 high: factors of 16 bits, which processors multiply and add in
  /// pairs.
  struct Pair {
    std::int16_t low[2];
    std::int16_t high[2];
  };

  std::size_t pairs = 0;           // per output coordinate
  std::vector<std::size_t> first;  // source coordinate of each output coordinate's first weight
  std::vector<Pair> weights;

  /// The filter from `from` pixels to `to`, for the output coordinates [begin, begin + count), in
  /// reverse order if requested.
  void set(int from, int to, int begin, int count, bool reversed);
};

/// Rows of 4 bytes per pixel between the two passes.
struct ScaledRows {
  std::uint8_t* bytes;
  std::size_t row_bytes;  // of a multiple of 4 pixels
};

struct ResizePasses {
  /// Filters `count` rows of `image` from `first` on along the row, into `out`.
  void (*across)(const ResizeFilter& filter, const Image& image, int first, int count,
                 const ScaledRows& out);
  /// Filters `width` pixels of `rows` along the columns, into `out`, H W 3.
  void (*down)(const ResizeFilter& filter, const ScaledRows& rows, int width,
               std::span<std::uint8_t> out);
};

/// For any processor, and for this one. Both give the same bytes.
ResizePasses portable_passes();
ResizePasses fastest_passes();

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
