// The values of a product's operands: a function of type, kind, seed, matrix and index alone,
// shared by both backends' kernels and the host.
#pragma once

#include <cstdint>

#include "common/host_device.hpp"
#include "common/number_format.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

/// One of the two matrices of a product.
struct OperandRule {
  DataType type = DataType::float32;
  Operands kind = Operands::integers;
  int matrix = 0;          // 0: A, 1: B
  std::uint64_t seed = 0;  // of this matrix
};

inline OperandRule operand_rule(ProductType type, Operands kind, std::uint64_t seed, int matrix) {
  const std::uint64_t own = seed * 2 + static_cast<std::uint64_t>(matrix);
  return {operand_type(type), kind, matrix, number_format::hash(own, 0)};
}

namespace operands {

// Integers: with d = +-1 at one pair of elements in each block of B, 0 at the others, and v and w
// random in [-15, 15] and [-14, 14], the elements k and k + 16 of a row (index bit 4) are v and -v
// in A, w and w + d in B. Each pair adds -v d to an element of C, though all factors are dense and
// of four bits. So
//   - any partial sum is below 15 * 15 * k <= 2^24 for k <= 74,565: exact in fp32, in any order;
//   - the accumulator of Hopper's fp8 instructions keeps at least 13 bits below the highest bit of
//     a sum's largest term: exact, as sums of 32 products are below 2^13 and whole pairs are added;
//   - |C| <= 15 (k / block + 1), which is at most 256 for k <= 16 blocks: C is exact in bfloat16
//     too.
inline constexpr std::uint64_t kPartner = 16;

/// A block has 2^this elements of B: in fp8, whose products have a larger k, twice as many.
SHAKEDOWN_HOST_DEVICE inline int block_bits(DataType type) {
  return type == DataType::float8_e4m3 ? 10 : 9;
}

SHAKEDOWN_HOST_DEVICE inline int integer(const OperandRule& rule, std::uint64_t index) {
  const bool second = (index & kPartner) != 0;
  const std::uint64_t h = number_format::hash(rule.seed, index & ~kPartner);
  if (rule.matrix == 0) {
    const int v = static_cast<int>(h % 31) - 15;
    return second ? -v : v;
  }
  const int w = static_cast<int>(h % 29) - 14;
  if (!second) return w;
  const int bits = block_bits(rule.type);
  const std::uint64_t block_hash = number_format::hash(rule.seed, ~(index >> bits));
  const std::uint64_t in_block = number_format::low_bits(index, bits);
  const std::uint64_t pair = in_block / (2 * kPartner) * kPartner + index % kPartner;
  if (number_format::low_bits(block_hash, bits - 1) != pair) return w;
  return w + ((block_hash >> 32 & 1U) != 0 ? 1 : -1);
}

/// The sum of four uniform numbers: bell-shaped, of standard deviation 2 / sqrt(3), below 4, with
/// all 53 bits of the significand random. Exact until the one rounding to double.
SHAKEDOWN_HOST_DEVICE inline double normal_like(const OperandRule& rule, std::uint64_t index) {
  const std::uint64_t h = number_format::hash(rule.seed, index);
  const auto sum = static_cast<std::int64_t>((h & 0xFFFFU) + (h >> 16 & 0xFFFFU) +
                                             (h >> 32 & 0xFFFFU) + (h >> 48)) -
                   131070;
  const auto low = static_cast<std::int64_t>(number_format::mix(h) >> 20);
  return static_cast<double>(sum * (std::int64_t{1} << 44) + low) * 0x1p-59;
}

}  // namespace operands

/// The bits of an element. Full-entropy int8 has a standard deviation of 30.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t operand_bits(const OperandRule& rule,
                                                        std::uint64_t index) {
  const number_format::Format format = number_format::format_of(rule.type);
  const double value = rule.kind == Operands::integers ? operands::integer(rule, index)
                                                       : operands::normal_like(rule, index);
  if (format.exponent > 0) return number_format::encode(format, value);
  const auto whole =
      static_cast<std::int64_t>(rule.kind == Operands::integers ? value : 26 * value);
  return number_format::low_bits(static_cast<std::uint64_t>(whole), format.width);
}

/// Whether C is exact for operands of integers: k a multiple of 32, and small enough for its type.
/// Throws UsageError where it is not.
void check_exact(const ProductSpec& spec);

}  // namespace shakedown::node
