// The two hashes, and random numbers. bit_hash: of device buffers, to the last bit: the sum over
// its elements of a mix of each one's index and bits, which does not depend on the order in which
// they are added. xxh64: of bytes on the host.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown {

/// For one index a bijection of the bits: one wrong element always changes the sum.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t element_hash(std::uint64_t index, std::uint64_t bits) {
  return number_format::mix((index + 1) * 0x9E3779B97F4A7C15U + bits * 0xD1342543DE82EF95U);
}

/// Of memory that the host reads; Kernels::add_bit_hash computes the same on the device.
std::uint64_t bit_hash(ConstView x);

// Seeded random numbers that are the same on every machine and library.

/// splitmix64 (Steele, Lea & Flood 2014). Streams with different seeds are independent enough for
/// initialisation and augmentation; not for cryptography.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0xD1342543DE82EF95U) {}

  std::uint64_t next() { return number_format::mix(state_ += 0x9E3779B97F4A7C15U); }

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

// XXH64, the checksum of packed images: 64 bits at the speed of memory.
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md

/// With seed 0, as `xxhsum -H1` prints it.
std::uint64_t xxh64(std::span<const std::uint8_t> bytes);
inline std::uint64_t xxh64(std::string_view text) {
  return xxh64({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

}  // namespace shakedown
