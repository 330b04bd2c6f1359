#include "training/data/resize.hpp"

#include <algorithm>
#include <cmath>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

// PIL's: 8 bits of pixel and 2 of headroom leave 22 of the 32 to the weights.
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

int rounded(double value) { return static_cast<int>(std::lround(value)); }

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

}  // namespace

/// The filter from `from` pixels to `to`, for the output coordinates [begin, begin + count).
void Resizer::Filter::set(int from, int to, int begin, int count) {
  const double scale = static_cast<double>(from) / to;
  const double support = std::max(scale, 1.0);
  taps.clear();
  weights.clear();
  std::vector<double> triangle;
  for (int i = begin; i < begin + count; ++i) {
    const double center = (i + 0.5) * scale;
    const int first = std::max(rounded(center - support), 0);
    const int last = std::min(rounded(center + support), from);
    double total = 0;
    triangle.clear();
    for (int x = first; x < last; ++x) {
      triangle.push_back(std::max(1 - std::abs(x - center + 0.5) / support, 0.0));
      total += triangle.back();
    }
    taps.push_back({first, last - first, weights.size()});
    for (double weight : triangle) weights.push_back(rounded(weight / total * (1 << kWeightBits)));
  }
}

void Resizer::operator()(const Image& image, Region from, Size to, Region window,
                         std::span<std::uint8_t> out) {
  const std::size_t row_bytes = std::size_t{3} * static_cast<std::size_t>(window.width);
  ENSURE(out.size() == row_bytes * static_cast<std::size_t>(window.height), "size of the output");
  across_.set(from.width, to.width, window.x, window.width);
  down_.set(from.height, to.height, window.y, window.height);

  const int first_row = down_.taps.front().first;
  const int last_row = down_.taps.back().first + down_.taps.back().count;
  rows_.resize(row_bytes * static_cast<std::size_t>(last_row - first_row));
  std::uint8_t* scaled = rows_.data();
  for (int y = first_row; y < last_row; ++y) {
    const auto at = static_cast<std::size_t>(from.y + y) * static_cast<std::size_t>(image.width) +
                    static_cast<std::size_t>(from.x);
    for (const Filter::Taps& taps : across_.taps) {
      const std::uint8_t* pixel =
          image.rgb.data() + 3 * (at + static_cast<std::size_t>(taps.first));
      const std::int32_t* weight = across_.weights.data() + taps.weights;
      std::int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int t = 0; t < taps.count; ++t, pixel += 3) {
        red += weight[t] * pixel[0];
        green += weight[t] * pixel[1];
        blue += weight[t] * pixel[2];
      }
      *scaled++ = to_byte(red);
      *scaled++ = to_byte(green);
      *scaled++ = to_byte(blue);
    }
  }

  std::uint8_t* result = out.data();
  for (const Filter::Taps& taps : down_.taps) {
    sums_.assign(row_bytes, kHalf);
    for (int t = 0; t < taps.count; ++t) {
      const std::int32_t weight = down_.weights[taps.weights + static_cast<std::size_t>(t)];
      const std::uint8_t* row =
          rows_.data() + static_cast<std::size_t>(taps.first + t - first_row) * row_bytes;
      for (std::size_t i = 0; i < row_bytes; ++i) sums_[i] += weight * row[i];
    }
    result = std::transform(sums_.begin(), sums_.end(), result, to_byte);
  }
}

}  // namespace shakedown::training
