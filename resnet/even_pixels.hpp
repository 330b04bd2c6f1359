// Where the pixels of a tensor lie that is stored as its even rows and columns alone.
#pragma once

#include <bit>
#include <cstdint>

#include "common/host_device.hpp"
#include "resnet/architecture.hpp"

namespace shakedown {

/// Division by a number known before a kernel runs: a product and a shift (Granlund and Montgomery
/// 1994). Exact for numerators below 2^31 and divisors up to 2^31.
struct Divisor {
  std::uint32_t value;
  std::uint32_t factor;
  std::uint32_t shift;

  explicit Divisor(std::uint32_t divisor)
      : value(divisor), shift(static_cast<std::uint32_t>(std::bit_width(divisor - 1))) {
    const std::uint64_t excess = (std::uint64_t{1} << shift) - divisor;
    factor = static_cast<std::uint32_t>((excess << 32) / divisor + 1);
  }
  SHAKEDOWN_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    const auto high = static_cast<std::uint32_t>((std::uint64_t{factor} * n) >> 32);
    return (high + n) >> shift;
  }
};

/// Maps the pixels of a tensor, numbered as they lie in memory (N, H, W), to those of its even rows
/// and columns.
struct EvenPixels {
  static constexpr std::uint32_t kNone = ~0U;
  Divisor width;
  Divisor height;
  std::uint32_t even_width;
  std::uint32_t even_height;

  /// `shape` is the whole tensor's.
  explicit EvenPixels(const ActivationShape& shape)
      : width(static_cast<std::uint32_t>(shape.w)),
        height(static_cast<std::uint32_t>(shape.h)),
        even_width(static_cast<std::uint32_t>(strided(shape, 2).w)),
        even_height(static_cast<std::uint32_t>(strided(shape, 2).h)) {}

  /// kNone where the row or the column is odd.
  SHAKEDOWN_HOST_DEVICE std::uint32_t of(std::uint32_t pixel) const {
    const std::uint32_t line = width.quotient(pixel);
    const std::uint32_t image = height.quotient(line);
    const std::uint32_t x = pixel - line * width.value;
    const std::uint32_t y = line - image * height.value;
    if (((x | y) & 1U) != 0) return kNone;
    return (image * even_height + y / 2) * even_width + x / 2;
  }
};

}  // namespace shakedown
