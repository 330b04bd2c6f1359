// The index arithmetic of compact gradients (resnet/even_pixels.hpp).
#include "resnet/even_pixels.hpp"

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("division by a known number is exact below 2^31", "[even-pixels]") {
  std::vector<std::uint32_t> divisors;
  for (std::uint32_t d = 1; d <= 300; ++d) divisors.push_back(d);
  for (std::uint32_t d : {1023U, 1024U, 1025U, 8191U, 8192U, (1U << 30) - 1, 1U << 30, 1U << 31})
    divisors.push_back(d);
  bool exact = true;
  for (const std::uint32_t d : divisors) {
    const Divisor divisor(d);
    for (std::uint64_t base : {std::uint64_t{0}, std::uint64_t{1} << 20, std::uint64_t{1} << 31})
      for (std::uint64_t multiple = base / d; multiple < base / d + 50; ++multiple)
        for (std::int64_t offset = -2; offset <= 2; ++offset) {
          const std::int64_t n = static_cast<std::int64_t>(multiple * d) + offset;
          if (n < 0 || n >= std::int64_t{1} << 31) continue;
          const auto numerator = static_cast<std::uint32_t>(n);
          exact = exact && divisor.quotient(numerator) == numerator / d;
        }
  }
  CHECK(exact);
  CHECK(Divisor(56).quotient((1U << 31) - 1) == ((1U << 31) - 1) / 56);
}

TEST_CASE("even pixels are numbered as they lie in memory, the others are none", "[even-pixels]") {
  const int height = GENERATE(1, 2, 5, 7, 8);
  const int width = GENERATE(1, 2, 5, 7, 8);
  CAPTURE(height, width);
  const EvenPixels pixels({3, 64, height, width});
  std::uint32_t pixel = 0;
  std::uint32_t even = 0;
  for (int n = 0; n < 3; ++n)
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width; ++x)
        REQUIRE(pixels.of(pixel++) == (x % 2 == 0 && y % 2 == 0 ? even++ : EvenPixels::kNone));
  const ActivationShape compact = strided({3, 64, height, width}, 2);
  CHECK(even == static_cast<std::uint32_t>(compact.n * compact.h * compact.w));
}

}  // namespace shakedown
