#include "training/data/resize.hpp"

#include <algorithm>
#include <cmath>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

int rounded(double value) { return static_cast<int>(std::lround(value)); }

}  // namespace

void ResizeFilter::set(int from, int to, int begin, int count, bool reversed) {
  const double scale = static_cast<double>(from) / to;
  const double support = std::max(scale, 1.0);
  const auto center_of = [&](int i) {
    return (begin + (reversed ? count - 1 - i : i) + 0.5) * scale;
  };
  const auto low_of = [&](double center) { return std::max(rounded(center - support), 0); };
  const auto high_of = [&](double center) { return std::min(rounded(center + support), from); };
  int most = 0;
  for (int i = 0; i < count; ++i)
    most = std::max(most, high_of(center_of(i)) - low_of(center_of(i)));
  pairs = static_cast<std::size_t>(most + 1) / 2;
  const int last_first = std::max(from - 2 * static_cast<int>(pairs), 0);

  first.clear();
  weights.assign(pairs * static_cast<std::size_t>(count), Pair{});
  Pair* own = weights.data();
  for (int i = 0; i < count; ++i, own += pairs) {
    const double center = center_of(i);
    const int low = low_of(center), high = high_of(center);
    const int start = std::min(low, last_first);
    const auto triangle = [&](int x) {
      return std::max(1 - std::abs(x - center + 0.5) / support, 0.0);
    };
    double total = 0;
    for (int x = low; x < high; ++x) total += triangle(x);
    for (int x = low; x < high; ++x) {
      const int weight = rounded(triangle(x) / total * (1 << kWeightBits));
      Pair& pair = own[(x - start) / 2];
      pair.low[(x - start) % 2] = static_cast<std::int16_t>(weight % (1 << kLowBits));
      pair.high[(x - start) % 2] = static_cast<std::int16_t>(weight >> kLowBits);
    }
    first.push_back(static_cast<std::size_t>(start));
  }
}

void Resizer::operator()(const Image& image, Size to, Region window, bool mirror,
                         std::span<std::uint8_t> out) {
  const auto width = static_cast<std::size_t>(window.width);
  ENSURE(out.size() == 3 * width * static_cast<std::size_t>(window.height), "size of the output");
  across_.set(image.size().width, to.width, window.x, window.width, mirror);
  down_.set(image.size().height, to.height, window.y, window.height, false);

  const std::size_t first_row = down_.first.front();
  const std::size_t last_row = down_.first.back() + 2 * down_.pairs;  // may be one past the end
  const std::size_t row_bytes = 4 * ((width + 3) / 4 * 4);
  const std::size_t bytes = row_bytes * (last_row - first_row);
  if (rows_.size() < bytes) rows_.resize(bytes);
  const ScaledRows rows{rows_.data(), row_bytes};
  const int end = std::min(static_cast<int>(last_row), image.size().height);
  passes_.across(across_, image, static_cast<int>(first_row), end - static_cast<int>(first_row),
                 rows);
  for (std::size_t& row : down_.first) row -= first_row;
  passes_.down(down_, rows, window.width, out);
}

}  // namespace shakedown::training
