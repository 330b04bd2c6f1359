// Numbers on the host: float16 and bfloat16 as bits, and the formats of data types.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "common/host_device.hpp"
#include "common/types.hpp"

namespace shakedown {

// float16 and bfloat16 on the host, as bits: conversions rounded to nearest even.

inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // subnormal or zero
  return sign ? -magnitude : magnitude;
}

inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 65520
  if (magnitude < 0x38800000U) {  // below 2^-14: let the addition round at the subnormal step
    const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) & 0xFFFFU));
  }
  const std::uint32_t rebased = magnitude - 0x38000000U;
  return static_cast<std::uint16_t>(sign | ((rebased + 0xFFFU + ((rebased >> 13) & 1U)) >> 13));
}

}  // namespace shakedown

namespace shakedown::number_format {

// Elements in memory, and what the host computes with in their place: float32 of 16-bit ones.

struct Float16 {
  std::uint16_t bits;
};
struct Bfloat16 {
  std::uint16_t bits;
};

template <class T>
T load(T x) {
  return x;
}
inline float load(Float16 x) { return float16_to_float(x.bits); }
inline float load(Bfloat16 x) { return bfloat16_to_float(x.bits); }
template <class T>
void store(T& to, T x) {
  to = x;
}
inline void store(Float16& to, float x) { to.bits = float_to_float16(x); }
inline void store(Bfloat16& to, float x) { to.bits = float_to_bfloat16(x); }

// The bits of numbers in every element type, and a hash that makes numbers: shared by hosts and
// kernels, which must agree to the bit.

/// splitmix64's finalizer (Steele, Lea & Flood 2014).
SHAKEDOWN_HOST_DEVICE inline std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// A hash of two numbers: what pseudo-random data are at an index.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t hash(std::uint64_t seed, std::uint64_t index) {
  return mix(seed + (index + 1) * 0x9E3779B97F4A7C15U);
}

/// How a type's bits are laid out; integers have no exponent, and `mantissa` value bits.
struct Format {
  int width;
  int mantissa;
  int exponent;
  bool is_signed;
};

SHAKEDOWN_HOST_DEVICE inline Format format_of(DataType type) {
  switch (type) {
    case DataType::float64: return {64, 52, 11, true};
    case DataType::float32: return {32, 23, 8, true};
    case DataType::float16: return {16, 10, 5, true};
    case DataType::bfloat16: return {16, 7, 8, true};
    case DataType::float8_e4m3: return {8, 3, 4, true};
    case DataType::float8_e5m2: return {8, 2, 5, true};
    case DataType::int64: return {64, 63, 0, true};
    case DataType::int32: return {32, 31, 0, true};
    case DataType::int8: return {8, 7, 0, true};
    case DataType::uint64: return {64, 63, 0, false};  // one less: counts up to it stay in range
    case DataType::uint32: return {32, 32, 0, false};
    case DataType::uint8: return {8, 8, 0, false};
  }
  return {};
}

SHAKEDOWN_HOST_DEVICE inline std::uint64_t low_bits(std::uint64_t x, int count) {
  return count == 64 ? x : x & ((std::uint64_t{1} << count) - 1);
}

/// The bits of 1 in a floating format.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t bits_of_one(Format format) {
  return ((std::uint64_t{1} << (format.exponent - 1)) - 1) << format.mantissa;
}

/// The bits of a finite value in a floating format, rounded to nearest even; it must be in range.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t encode(Format format, double value) {
  if (format.width == 32) {  // as the hardware rounds it: a tenth of the time
    const auto single = static_cast<float>(value);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &single, sizeof(bits));
    return bits;
  }
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (format.width == 64) return bits;
  const std::uint64_t sign = (bits >> 63) << (format.width - 1);
  if (value == 0) return sign;
  const int bias = (1 << (format.exponent - 1)) - 1;
  int exponent = static_cast<int>((bits >> 52) & 0x7FF) - 1023 + bias;
  int shift = 52 - format.mantissa;
  if (exponent < 1) {  // subnormal there
    shift += 1 - exponent;
    exponent = 1;
  }
  const std::uint64_t significand = low_bits(bits, 52) | (std::uint64_t{1} << 52);
  if (shift > 53) return sign;
  std::uint64_t kept = significand >> shift;
  if (shift > 0) {
    const std::uint64_t rest = low_bits(significand, shift);
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    if (rest > half || (rest == half && (kept & 1U) != 0)) ++kept;
  }
  // `kept` carries its leading one, or a rounding's carry, into the exponent.
  return sign | ((static_cast<std::uint64_t>(exponent - 1) << format.mantissa) + kept);
}

/// Bits of an integer format as a number that orders as it does.
SHAKEDOWN_HOST_DEVICE inline std::int64_t sign_extended(Format format, std::uint64_t bits) {
  return static_cast<std::int64_t>(bits << (64 - format.width)) >> (64 - format.width);
}

/// The number of these bits; of floating formats a finite one.
SHAKEDOWN_HOST_DEVICE inline double decode(Format format, std::uint64_t bits) {
  if (format.exponent == 0)
    return format.is_signed ? static_cast<double>(sign_extended(format, bits))
                            : static_cast<double>(bits);
  double value = 0;
  if (format.width == 64) {
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const int bias = (1 << (format.exponent - 1)) - 1;
  const std::uint64_t exponent = low_bits(bits >> format.mantissa, format.exponent);
  const std::uint64_t steps =
      low_bits(bits, format.mantissa) | (exponent > 0 ? std::uint64_t{1} << format.mantissa : 0);
  // steps of 2^(exponent - bias - mantissa), which a double holds
  const std::uint64_t step_bits =
      ((exponent > 0 ? exponent : 1) + static_cast<std::uint64_t>(1023 - bias - format.mantissa))
      << 52;
  std::memcpy(&value, &step_bits, sizeof(value));
  value *= static_cast<double>(steps);
  return (bits >> (format.width - 1)) != 0 ? -value : value;
}

}  // namespace shakedown::number_format
