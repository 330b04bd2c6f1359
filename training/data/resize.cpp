#include "training/data/transform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/ensure.hpp"

namespace shakedown::training {
namespace {

// PIL's: 8 bits of pixel and 2 of headroom leave 22 of the 32 to the weights.
constexpr int kWeightBits = 22;
constexpr int kBlock = 32;  // bytes whose sums registers hold
constexpr int kBlockPixels = kBlock / 4;

int rounded(double value) { return static_cast<int>(std::lround(value)); }

/// Of rows that are whole blocks.
void reshape(Image& image, Size size) {
  image.reshape(size, (size.width + kBlockPixels - 1) / kBlockPixels * kBlockPixels, 0);
}

std::ptrdiff_t row_bytes_of(const Image& image) { return image.row(1) - image.row(0); }

/// Row x of `to` is column x of `count` rows of `from`, from `first` on. Tiles keep to the cache.
void transpose(const Image& from, int first, int count, Image& to) {
  constexpr int kTile = 16;
  const int width = from.size().width;
  reshape(to, {count, width});
  const std::ptrdiff_t row_bytes = row_bytes_of(from);
  for (int top = 0; top < count; top += kTile)
    for (int left = 0; left < width; left += kTile)
      for (int x = left; x < std::min(width, left + kTile); ++x) {
        const std::uint8_t* pixel = from.row(first + top) + 4 * x;
        std::uint8_t* out = to.row(x) + 4 * top;
        for (int y = top; y < std::min(count, top + kTile); ++y, pixel += row_bytes, out += 4)
          std::memcpy(out, pixel, 4);
      }
}

/// A row as the weighted sum of rows that follow one another.
[[gnu::always_inline]] inline void weighted_sum(std::span<const std::int32_t> weights,
                                                const std::uint8_t* rows, std::ptrdiff_t row_bytes,
                                                std::uint8_t* out) {
  for (std::ptrdiff_t at = 0; at < row_bytes; at += kBlock) {
    std::int32_t sums[kBlock];
    for (std::int32_t& sum : sums) sum = 1 << (kWeightBits - 1);
    const std::uint8_t* row = rows + at;
    for (const std::int32_t weight : weights) {
#pragma omp simd
      for (int i = 0; i < kBlock; ++i) sums[i] += weight * row[i];
      row += row_bytes;
    }
#pragma omp simd
    for (int i = 0; i < kBlock; ++i)
      out[at + i] = static_cast<std::uint8_t>(std::clamp(sums[i] >> kWeightBits, 0, 255));
  }
}

#ifdef __x86_64__
[[gnu::target("avx2")]] void weighted_sum_avx2(std::span<const std::int32_t> weights,
                                               const std::uint8_t* rows, std::ptrdiff_t row_bytes,
                                               std::uint8_t* out) {
  weighted_sum(weights, rows, row_bytes, out);
}
#endif

/// The rows of `to` from those of `from`, of which the first is the filter's row `first`.
void filter_rows(const ResizeFilter& filter, const Image& from, int first, Image& to) {
  auto* sum = weighted_sum;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) sum = weighted_sum_avx2;
#endif
  reshape(to, {from.size().width, static_cast<int>(filter.first.size())});
  const std::ptrdiff_t row_bytes = row_bytes_of(from);
  const auto taps = static_cast<std::size_t>(filter.taps);
  const std::int32_t* weights = filter.weights.data();
  for (int y = 0; y < to.size().height; ++y, weights += taps)
    sum({weights, taps}, from.row(filter.first[static_cast<std::size_t>(y)] - first), row_bytes,
        to.row(y));
}

}  // namespace

void ResizeFilter::set(int from, int to, int begin, int count, bool reversed) {
  const double scale = static_cast<double>(from) / to;
  const double support = std::max(scale, 1.0);
  const auto center_of = [&](int i) {
    return (begin + (reversed ? count - 1 - i : i) + 0.5) * scale;
  };
  const auto low_of = [&](double center) { return std::max(rounded(center - support), 0); };
  const auto high_of = [&](double center) { return std::min(rounded(center + support), from); };
  taps = 0;
  for (int i = 0; i < count; ++i)
    taps = std::max(taps, high_of(center_of(i)) - low_of(center_of(i)));

  first.clear();
  weights.assign(static_cast<std::size_t>(taps) * static_cast<std::size_t>(count), 0);
  std::int32_t* own = weights.data();
  for (int i = 0; i < count; ++i, own += taps) {
    const double center = center_of(i);
    const int low = low_of(center), high = high_of(center);
    const int start = std::min(low, from - taps);
    const auto triangle = [&](int x) {
      return std::max(1 - std::abs(x - center + 0.5) / support, 0.0);
    };
    double total = 0;
    for (int x = low; x < high; ++x) total += triangle(x);
    for (int x = low; x < high; ++x)
      own[x - start] = rounded(triangle(x) / total * (1 << kWeightBits));
    first.push_back(start);
  }
}

/// Both passes are sums of whole rows, which processors add up fast: between them, and before, rows
/// and columns change places.
void Resizer::operator()(const Image& image, Size to, Region window, bool mirror,
                         std::span<std::uint8_t> out) {
  across_.set(image.size().width, to.width, window.x, window.width, mirror);
  down_.set(image.size().height, to.height, window.y, window.height, false);
  const int first_row = down_.first.front();
  transpose(image, first_row, down_.first.back() + down_.taps - first_row, columns_);
  filter_rows(across_, columns_, 0, scaled_columns_);
  transpose(scaled_columns_, 0, window.width, rows_);
  filter_rows(down_, rows_, first_row, scaled_);
  copy_rgb(scaled_, out);
}

}  // namespace shakedown::training
