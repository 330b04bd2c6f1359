#include "training/data/resize.hpp"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "common/ensure.hpp"

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

#ifdef __x86_64__
#endif

namespace shakedown::training {
namespace {

constexpr int kWeightBits = ResizeFilter::kWeightBits;
constexpr int kLowBits = ResizeFilter::kLowBits;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

using Pair = ResizeFilter::Pair;

// ---- any processor ----------------------------------------------------------------------------

/// Adds two weighted pixels to the sums.
void add_pair(const Pair& pair, const std::uint8_t* a, const std::uint8_t* b,
              std::array<std::int32_t, 4>& sums) {
  const std::int32_t weight_a = pair.low[0] + (pair.high[0] << kLowBits);
  const std::int32_t weight_b = pair.low[1] + (pair.high[1] << kLowBits);
  for (std::size_t c = 0; c < 4; ++c) sums[c] += weight_a * a[c] + weight_b * b[c];
}

std::uint8_t to_byte(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

void across_portable(const ResizeFilter& filter, const Image& image, int first, int count,
                     const ScaledRows& out) {
  for (int y = 0; y < count; ++y) {
    const std::uint8_t* const row = image.row(first + y);
    std::uint8_t* result = out.bytes + static_cast<std::size_t>(y) * out.row_bytes;
    const Pair* pair = filter.weights.data();
    for (std::size_t at : filter.first) {
      const std::uint8_t* pixel = row + 4 * at;
      std::array<std::int32_t, 4> sums{kHalf, kHalf, kHalf, kHalf};
      for (std::size_t p = 0; p < filter.pairs; ++p, pixel += 8)
        add_pair(*pair++, pixel, pixel + 4, sums);
      result = std::transform(sums.begin(), sums.end(), result, to_byte);
    }
  }
}

void down_portable(const ResizeFilter& filter, const ScaledRows& rows, int width,
                   std::span<std::uint8_t> out) {
  std::uint8_t* result = out.data();
  const Pair* pairs = filter.weights.data();
  for (std::size_t at : filter.first) {
    const std::uint8_t* pixel = rows.bytes + at * rows.row_bytes;
    for (int x = 0; x < width; ++x, pixel += 4) {
      std::array<std::int32_t, 4> sums{kHalf, kHalf, kHalf, kHalf};
      const std::uint8_t* a = pixel;
      for (std::size_t p = 0; p < filter.pairs; ++p, a += 2 * rows.row_bytes)
        add_pair(pairs[p], a, a + rows.row_bytes, sums);
      result = std::transform(sums.begin(), sums.begin() + 3, result, to_byte);
    }
    pairs += filter.pairs;
  }
}

// ---- x86-64 with AVX2 -------------------------------------------------------------------------

#ifdef __x86_64__
#define WITH_AVX2 __attribute__((target("avx2")))

WITH_AVX2 __m256i broadcast(const std::int16_t (&weights)[2]) {
  std::int32_t both;
  std::memcpy(&both, weights, sizeof both);
  return _mm256_set1_epi32(both);
}

/// Eight weighted sums: each 16-bit pair of `values` times the two weights.
struct Sums {
  __m256i low, high;

  WITH_AVX2 Sums() : low(_mm256_set1_epi32(kHalf)), high(_mm256_setzero_si256()) {}
  WITH_AVX2 void add(__m256i values, __m256i low_weights, __m256i high_weights) {
    low = _mm256_add_epi32(low, _mm256_madd_epi16(values, low_weights));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(values, high_weights));
  }
  WITH_AVX2 __m256i total() const {
    return _mm256_srai_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits)), kWeightBits);
  }
};

WITH_AVX2 __m128i load_8_bytes(const std::uint8_t* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}

WITH_AVX2 __m128i load_16_bytes(const std::uint8_t* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

/// Two rows at a time, one in either half of the registers.
WITH_AVX2 void across_two(const ResizeFilter& filter, const std::uint8_t* row_a,
                          const std::uint8_t* row_b, std::uint8_t* out_a, std::uint8_t* out_b) {
  // two pixels' bytes to pairs of 16 bits: red red, green green, ...
  const __m256i interleave = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1));
  const Pair* pair = filter.weights.data();
  for (std::size_t at : filter.first) {
    const std::uint8_t* a = row_a + 4 * at;
    const std::uint8_t* b = row_b + 4 * at;
    Sums sums;
    for (std::size_t p = 0; p < filter.pairs; ++p, a += 8, b += 8, ++pair) {
      const __m256i pixels =
          _mm256_inserti128_si256(_mm256_castsi128_si256(load_8_bytes(a)), load_8_bytes(b), 1);
      sums.add(_mm256_shuffle_epi8(pixels, interleave), broadcast(pair->low),
               broadcast(pair->high));
    }
    __m256i bytes = sums.total();
    bytes = _mm256_packs_epi32(bytes, bytes);
    bytes = _mm256_packus_epi16(bytes, bytes);
    const std::int32_t pixel_a = _mm256_extract_epi32(bytes, 0);
    const std::int32_t pixel_b = _mm256_extract_epi32(bytes, 4);
    std::memcpy(out_a, &pixel_a, 4);
    std::memcpy(out_b, &pixel_b, 4);
    out_a += 4;
    out_b += 4;
  }
}

WITH_AVX2 void across_avx2(const ResizeFilter& filter, const Image& image, int first, int count,
                           const ScaledRows& out) {
  for (int y = 0; y < count; y += 2) {
    const int next = std::min(y + 1, count - 1);
    across_two(filter, image.row(first + y), image.row(first + next),
               out.bytes + static_cast<std::size_t>(y) * out.row_bytes,
               out.bytes + static_cast<std::size_t>(next) * out.row_bytes);
  }
}

/// Four pixels of one output row, in the lower 12 bytes.
WITH_AVX2 __m128i down_four(std::span<const Pair> pairs, const std::uint8_t* from,
                            std::size_t row_bytes) {
  Sums left, right;  // two pixels each
  for (const Pair& pair : pairs) {
    const __m128i a = load_16_bytes(from);
    const __m128i b = load_16_bytes(from + row_bytes);
    const __m256i low = broadcast(pair.low), high = broadcast(pair.high);
    left.add(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)), low, high);
    right.add(_mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b)), low, high);
    from += 2 * row_bytes;
  }
  __m256i bytes = _mm256_packs_epi32(left.total(), right.total());
  bytes = _mm256_packus_epi16(bytes, bytes);  // pixels 0 2 0 2, 1 3 1 3
  const __m128i pixels =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
  return _mm_shuffle_epi8(pixels,
                          _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
}

WITH_AVX2 void down_avx2(const ResizeFilter& filter, const ScaledRows& rows, int width,
                         std::span<std::uint8_t> out) {
  std::uint8_t* result = out.data();
  const Pair* pairs = filter.weights.data();
  for (std::size_t at : filter.first) {
    const std::uint8_t* from = rows.bytes + at * rows.row_bytes;
    int left = width;
    for (; left >= 4; left -= 4, from += 16, result += 12) {
      const __m128i bytes = down_four({pairs, filter.pairs}, from, rows.row_bytes);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(result), bytes);
      const std::int32_t last = _mm_extract_epi32(bytes, 2);
      std::memcpy(result + 8, &last, 4);
    }
    if (left > 0) {
      std::array<std::uint8_t, 16> bytes;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes.data()),
                       down_four({pairs, filter.pairs}, from, rows.row_bytes));
      result = std::copy_n(bytes.begin(), 3 * left, result);
    }
    pairs += filter.pairs;
  }
}
#endif

}  // namespace

ResizePasses portable_passes() { return {across_portable, down_portable}; }

ResizePasses fastest_passes() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return {across_avx2, down_avx2};
#endif
  return portable_passes();
}

}  // namespace shakedown::training
