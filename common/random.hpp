// Seeded random numbers that are the same on every machine and library.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace shakedown {

/// splitmix64 (Steele, Lea & Flood 2014). Streams with different seeds are independent enough for
/// initialisation and augmentation; not for cryptography.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }

  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// In [0, n); the bias for n far below 2^64 is negligible.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

  /// Standard normal (Marsaglia & Bray 1964: two values of a point in the unit disc).
  double normal() {
    if (std::isfinite(second_)) return std::exchange(second_, NAN);
    double x = 0;
    double y = 0;
    double square = 0;
    do {
      x = 2 * uniform() - 1;
      y = 2 * uniform() - 1;
      square = x * x + y * y;
    } while (square >= 1 || square == 0);
    const double factor = std::sqrt(-2 * std::log(square) / square);
    second_ = y * factor;
    return x * factor;
  }

 private:
  std::uint64_t state_;
  double second_ = NAN;  // normal value, where one is left
};

/// A seed for one use of `seed`: mixes in what the use is numbered by.
inline std::uint64_t derive_seed(std::uint64_t seed, std::uint64_t use) {
  return Random(seed ^ (use * 0x9E3779B97F4A7C15U)).next();
}

}  // namespace shakedown
