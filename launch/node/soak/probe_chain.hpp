// The arithmetic that a probe repeats, the same on host and device: chains of operations whose
// every bit goes into a hash, so that two processors that did the same work have the same hash.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/host_device.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

/// What is repeated. Sums are of full-entropy values; mma (tensor cores) also multiplies small
/// integers, whose exact result is known.
enum class ProbeKind { integer, fma_fp32, fma_fp64, mma_fp16, mma_bf16 };
const char* name_of(ProbeKind kind);  // "mma fp16"

/// What lanes of a warp compute differs; every warp of every processor computes the same.
inline constexpr int kProbeLanes = 32;

namespace probe {

SHAKEDOWN_HOST_DEVICE inline std::uint64_t start(std::uint64_t seed, int lane) {
  return number_format::hash(seed, static_cast<std::uint64_t>(lane));
}

/// In [1, 2), with all bits of the significand from `bits`.
SHAKEDOWN_HOST_DEVICE inline void from_bits(std::uint64_t bits, float& x) {
  const auto word = (static_cast<std::uint32_t>(bits) & 0x007FFFFFU) | 0x3F800000U;
  std::memcpy(&x, &word, sizeof(x));
}
SHAKEDOWN_HOST_DEVICE inline void from_bits(std::uint64_t bits, double& x) {
  const std::uint64_t word = (bits & 0x000FFFFFFFFFFFFFU) | 0x3FF0000000000000U;
  std::memcpy(&x, &word, sizeof(x));
}
SHAKEDOWN_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
SHAKEDOWN_HOST_DEVICE inline std::uint64_t bits_of(double x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline constexpr int kFmaPerStep = 32;  // in two chains

/// Two chains that start from the hash and grow (else an error would shrink with them), and the
/// hash of every result's bits: a step of fma_fp32 or fma_fp64. An FMA is rounded once, so its bits
/// are the same everywhere.
template <class Float>
SHAKEDOWN_HOST_DEVICE std::uint64_t fma_step(std::uint64_t hash) {
  Float x = 0;
  Float y = 0;
  Float factor = 0;
  from_bits(hash, x);
  from_bits(hash >> 12, y);
  from_bits(mix(hash + 1), factor);
  const Float addend = x;
  auto sum = bits_of(x);
  for (int i = 0; i < kFmaPerStep / 2; ++i) {
    x = std::fma(x, factor, y);
    y = std::fma(y, factor, addend);
    sum += bits_of(x);
    sum += bits_of(y) * 3;
  }
  return mix(hash ^ (static_cast<std::uint64_t>(sum) << 7));
}

inline constexpr int kMixesPerStep = 8;

SHAKEDOWN_HOST_DEVICE inline std::uint64_t integer_step(std::uint64_t hash) {
  for (int i = 0; i < kMixesPerStep; ++i) hash = number_format::hash(hash, 0);
  return hash;
}

/// A step of a kind that host and device share.
template <ProbeKind kind>
SHAKEDOWN_HOST_DEVICE std::uint64_t step(std::uint64_t hash) {
  if constexpr (kind == ProbeKind::integer) return integer_step(hash);
  if constexpr (kind == ProbeKind::fma_fp32) return fma_step<float>(hash);
  if constexpr (kind == ProbeKind::fma_fp64) return fma_step<double>(hash);
  return hash;
}

/// Half of them of full-entropy values, half of small integers.
inline constexpr int kMmaPerStep = 16;

/// Of mma's exact products: whole numbers from -15 to 15 at (row or column, k).
SHAKEDOWN_HOST_DEVICE inline int small_integer(std::uint64_t seed, int matrix, int line, int k) {
  const auto index = static_cast<std::uint64_t>(matrix * 4096 + line * 64 + k);
  return static_cast<int>(number_format::hash(seed, index) % 31) - 15;
}

}  // namespace probe
}  // namespace shakedown::node
