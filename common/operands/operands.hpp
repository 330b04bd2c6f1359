// Operands that name themselves: what each rank contributes to a collective, and what comes out.
// Every element depends on rank, iteration and position, so that a wrong result shows where it came
// from (decoder.hpp), and the result is known in O(1) steps, whatever the order of the additions.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown::operands {

/// The source of an expected element: one rank's, or all ranks' combined.
inline constexpr int kAllRanks = -1;

/// What NCCL's Simple and LL128 move at once.
inline constexpr std::size_t kUnitBytes = 16;

/// The largest number of ranks whose places are computed exactly.
inline constexpr int kMostRanks = 65000;

// A budget M of whole numbers, exact in the type, is divided between the ranks: the sum of |x| over
// all ranks is at most M at every element, so that no partial sum of any subset rounds, in any
// order, in the type or a wider one. P is the least prime >= ranks, q = (a rank + b) mod P with a
// and b by hash: each rank has a place of its own, and any two places are independent.
//   dense   M >= 2 P: no addend is 0. The sizes of places 2i and 2i + 1 are equal, their signs
//           are not, so that the sum is the last place's less that of the P - ranks places without
//           a rank.
//   sparse  else: in each block of elements a rank has +-1 in `slots` consecutive elements, and
//           every aligned block shows every rank.
//   rest    one rank of each 16-byte unit adds what is left of the budget, at least M/2: the sum
//           is uniform over more than M values.

struct Layout {
  std::uint32_t prime = 2;
  std::uint64_t reciprocal = 0;  // 2^48 / prime, rounded up
  bool is_signed = true;
  bool dense = true;
  std::int64_t bias = 0;     // dense, unsigned: on every rank
  std::uint64_t most = 0;    // dense: |x| at most, without bias and rest
  std::uint64_t spread = 1;  // dense: of the part that does not depend on the place
  std::uint64_t step = 0;    // dense: of the part that does; 0: sizes are permuted
  int block_bits = 0;        // sparse: log2 of a block's elements
  std::uint32_t slots = 0;   // sparse: elements of a block in which a rank has a share
  std::int64_t rest = 0;
};

/// Of one operation. Values are whole numbers; in floating types times a power of two by element,
/// that all ranks share.
struct Operands {
  DataType type = DataType::float32;
  bool combined = false;  // by `reduction`; else elements are only moved: any bits will do
  Reduction reduction = Reduction::sum;
  int ranks = 1;
  std::uint64_t seed = 0;
  std::uint64_t iteration = 0;

  // what follows from these: by make_operands
  std::uint64_t key = 0;  // of seed and iteration
  Layout layout;          // of sums, averages and exponents
  int unit_bits = 0;      // log2 of a 16-byte unit's elements
  int lowest_scale = -3;
  std::uint32_t scales = 7;  // one less than their number, a power of two
  bool paired = false;       // an average: two ranks are not 0, results may be 2 ulp off
};

/// Requires 1 <= ranks <= kMostRanks.
Operands make_operands(DataType type, bool combined, Reduction reduction, int ranks,
                       std::uint64_t seed = 0, std::uint64_t iteration = 0);

/// The same of another iteration.
Operands at_iteration(Operands operands, std::uint64_t iteration);

/// Whether every correct transport gives the same result, and not a constant. Not averages of
/// float8_e4m3, in which 1/ranks is not exact, nor of integers over more ranks than a quarter of
/// their budget.
bool checkable(const Operands& operands);

/// log2 of the number of values that a result may have: what one element that fits is worth as
/// evidence. A lower bound.
double log2_values(const Operands& operands, int source);

/// Bytes from which a wrong result can be decoded: 512, or where few ranks have a share in an
/// element, what shows each rank often enough; 128 KiB at most.
std::size_t decodable_bytes(const Operands& operands);

namespace detail {

using number_format::encode;
using number_format::Format;
using number_format::format_of;
using number_format::hash;
using number_format::low_bits;
using number_format::mix;

__extension__ using Wide = unsigned __int128;  // nvcc has it since CUDA 11.5

/// A number below n from a hash.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t below(std::uint64_t h, std::uint64_t n) {
  return static_cast<std::uint64_t>((static_cast<Wide>(h) * n) >> 64);
}
/// The same from its upper half, for n < 2^32.
SHAKEDOWN_HOST_DEVICE inline std::uint32_t below_32(std::uint64_t h, std::uint32_t n) {
  return static_cast<std::uint32_t>(((h >> 32) * n) >> 32);
}

struct Hashes {
  std::uint64_t element;
  std::uint64_t place;  // of the element, or the block
};

SHAKEDOWN_HOST_DEVICE inline Hashes hashes_at(const Operands& o, std::uint64_t position) {
  const std::uint64_t h = hash(o.key, position);
  if (o.layout.dense) return {h, h};
  return {h, hash(o.key ^ 0xA0761D6478BD642FU, position >> o.layout.block_bits)};
}

/// A permutation of [0, P). The scale uses other bits of the hash.
SHAKEDOWN_HOST_DEVICE inline std::uint32_t place_of(const Layout& l, std::uint64_t h,
                                                    std::uint32_t rank) {
  const std::uint64_t a = 1 + (((h >> 40) * (l.prime - 1)) >> 24);
  const std::uint64_t b = (((h >> 16) & 0xFFFFFFU) * l.prime) >> 24;
  const std::uint64_t x = a * rank + b;  // < P^2
  return static_cast<std::uint32_t>(x - l.prime * ((x * l.reciprocal) >> 48));
}

/// Of dense layouts, at the place of a rank; `h` of the element.
SHAKEDOWN_HOST_DEVICE inline std::int64_t dense_share(const Layout& l, std::uint64_t h,
                                                      std::uint32_t place) {
  const std::uint64_t h2 = mix(h ^ 0x5851F42D4C957F2DU);
  std::uint64_t size = 1;
  if (l.step > 0)
    size += below(h2, l.spread) + (place >> 1) * (1 + below((h2 << 32) | (h2 >> 32), l.step));
  else
    size += ((place >> 1) + static_cast<std::uint32_t>(below(h2, l.most))) %
            static_cast<std::uint32_t>(l.most);
  const auto x = static_cast<std::int64_t>(size);
  return (place & 1U) != 0 ? -x : x;
}

SHAKEDOWN_HOST_DEVICE inline std::int64_t sparse_share(const Layout& l, std::uint64_t position,
                                                       std::uint32_t place) {
  const std::uint32_t first = place * l.slots;
  const std::uint32_t after =
      (static_cast<std::uint32_t>(position) - first) & ((1U << l.block_bits) - 1);
  if (after >= l.slots) return 0;
  return l.is_signed && (((first + after) >> l.block_bits) & 1U) != 0 ? -1 : 1;
}

SHAKEDOWN_HOST_DEVICE inline std::int64_t share(const Layout& l, Hashes h, std::uint64_t position,
                                                std::uint32_t rank) {
  const std::uint32_t place = place_of(l, h.place, rank);
  return l.dense ? l.bias + dense_share(l, h.element, place) : sparse_share(l, position, place);
}

SHAKEDOWN_HOST_DEVICE inline std::int64_t rest_of(const Layout& l, std::uint64_t h) {
  const auto count = static_cast<std::uint64_t>(l.is_signed ? 2 * l.rest : l.rest) + 1;
  const auto x = static_cast<std::int64_t>(below(mix(h ^ 0x2545F4914F6CDD1DU), count));
  return l.is_signed ? x - l.rest : x;
}

/// The rank that adds the rest in the 16-byte unit of this position.
SHAKEDOWN_HOST_DEVICE inline int odd_rank(const Operands& o, std::uint64_t position) {
  return static_cast<int>(below_32(hash(o.key ^ 0xA24BAED4963EE407U, position >> o.unit_bits),
                                   static_cast<std::uint32_t>(o.ranks)));
}

/// A rank's whole number.
SHAKEDOWN_HOST_DEVICE inline std::int64_t whole(const Operands& o, Hashes h, int rank,
                                                std::uint64_t position) {
  const std::int64_t x = share(o.layout, h, position, static_cast<std::uint32_t>(rank));
  return rank == odd_rank(o, position) ? x + rest_of(o.layout, h.element) : x;
}

/// The sum of all ranks' whole numbers.
SHAKEDOWN_HOST_DEVICE inline std::int64_t whole_sum(const Operands& o, Hashes h,
                                                    std::uint64_t position) {
  const Layout& l = o.layout;
  std::int64_t sum = rest_of(l, h.element);
  if (l.dense) {
    sum += l.bias * l.prime;
    if ((l.prime & 1U) != 0) sum += dense_share(l, h.element, l.prime - 1);
  } else {
    const std::int64_t in_block = static_cast<std::int64_t>(position) & ((1 << l.block_bits) - 1);
    const std::int64_t count =
        ((static_cast<std::int64_t>(l.prime) * l.slots - 1 - in_block) >> l.block_bits) + 1;
    sum += l.is_signed ? count & 1 : count;
  }
  for (auto absent = static_cast<std::uint32_t>(o.ranks); absent < l.prime; ++absent)
    sum -= share(l, h, position, absent);
  return sum;
}

/// 2^exponent; of normal numbers.
SHAKEDOWN_HOST_DEVICE inline double power_of_two(std::int64_t exponent) {
  const std::uint64_t bits = static_cast<std::uint64_t>(1023 + exponent) << 52;
  double power = 0;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}
SHAKEDOWN_HOST_DEVICE inline double scale_of(const Operands& o, std::uint64_t h) {
  return power_of_two(o.lowest_scale + static_cast<int>(h & o.scales));
}

/// The significand, in [1, 2), that one rank of a unit contributes to a product.
SHAKEDOWN_HOST_DEVICE inline double significand(Format format, std::uint64_t h) {
  const std::uint64_t one = std::uint64_t{1} << format.mantissa;
  return static_cast<double>(one + low_bits(mix(h ^ 0x2545F4914F6CDD1DU) >> 8, format.mantissa)) *
         power_of_two(-format.mantissa);
}
/// (-2)^exponent: a product's sign is the parity of the sum of exponents.
SHAKEDOWN_HOST_DEVICE inline double power_of_minus_two(std::int64_t exponent) {
  const double power = power_of_two(exponent);
  return (exponent & 1) != 0 ? -power : power;
}
/// (-5)^exponent, which wraps: an odd number. Exponents count modulo 2^(width - 2).
SHAKEDOWN_HOST_DEVICE inline std::uint64_t power_of_minus_five(std::int64_t exponent, int width) {
  auto e = static_cast<std::uint64_t>(exponent);
  std::uint64_t power = 1;
  std::uint64_t base = ~std::uint64_t{4};
  for (int bit = 0; bit < width - 2; ++bit) {
    power *= 1 + ((base - 1) & (0 - (e & 1U)));  // random bits would mispredict a branch
    base *= base;
    e >>= 1;
  }
  return power;
}

/// Where two ranks of an average are not 0.
SHAKEDOWN_HOST_DEVICE inline double paired_number(const Operands& o, Format format, std::uint64_t h,
                                                  std::uint64_t number) {
  const double magnitude = static_cast<double>(
      1 + low_bits(mix(h ^ (0x5851F42D4C957F2DU + number)) >> 8, format.mantissa));
  return ((h & 8U) != 0 ? -magnitude : magnitude) * scale_of(o, h);
}
SHAKEDOWN_HOST_DEVICE inline std::uint32_t first_of_pair(const Operands& o, std::uint64_t h) {
  return below_32(h, static_cast<std::uint32_t>(o.ranks));
}
SHAKEDOWN_HOST_DEVICE inline std::uint32_t second_of_pair(const Operands& o, std::uint64_t h,
                                                          std::uint32_t first) {
  const auto ranks = static_cast<std::uint32_t>(o.ranks);
  return (first + 1 + below_32(h << 32, ranks - 1)) % ranks;
}

// Minimum and maximum: at each element one rank is the extreme. The order of two elements shows in
// one of their upper bits: those above it are the same on all ranks, those below are each rank's.

SHAKEDOWN_HOST_DEVICE inline int extreme_rank(const Operands& o, std::uint64_t h) {
  return static_cast<int>(below_32(h, static_cast<std::uint32_t>(o.ranks)));
}
/// Bits of a number that orders as the value does; of floating types sign, three bits of exponent
/// and the significand.
SHAKEDOWN_HOST_DEVICE inline int ordered_bits(Format format) {
  return format.exponent == 0 ? format.width : 4 + format.mantissa;
}
SHAKEDOWN_HOST_DEVICE inline std::uint64_t from_ordered(Format format, std::uint64_t ordered) {
  const int bits = ordered_bits(format);
  const std::uint64_t top = std::uint64_t{1} << (bits - 1);
  if (format.exponent == 0) return format.is_signed ? ordered ^ top : ordered;
  const std::uint64_t negative = (~ordered >> (bits - 1)) & 1U;
  const std::uint64_t magnitude = low_bits(ordered ^ (0 - negative), bits - 1);
  const auto lowest = static_cast<std::uint64_t>((1 << (format.exponent - 1)) - 1 - 3);
  return (negative << (format.width - 1)) | (magnitude + (lowest << format.mantissa));
}
SHAKEDOWN_HOST_DEVICE inline std::uint64_t ranked_bits(const Operands& o, Format format,
                                                       std::uint64_t h, int rank) {
  const int bits = ordered_bits(format);
  const int at = bits - 1 - static_cast<int>(h & 3U);
  const std::uint64_t shared = mix(h ^ 0x2545F4914F6CDD1DU) >> at << at << 1;
  const std::uint64_t own = low_bits(hash(h, static_cast<std::uint64_t>(rank)), at);
  const auto upper =
      static_cast<std::uint64_t>((rank == extreme_rank(o, h)) == (o.reduction == Reduction::max));
  return from_ordered(format, low_bits(shared | (upper << at) | own, bits));
}

SHAKEDOWN_HOST_DEVICE inline bool ordered(Reduction reduction) {
  return reduction == Reduction::min || reduction == Reduction::max;
}

/// A rank's element as a number, of floating types that are added or multiplied.
SHAKEDOWN_HOST_DEVICE inline double number(const Operands& o, Format format, int rank,
                                           std::uint64_t position) {
  const Hashes h = hashes_at(o, position);
  if (o.paired) {
    const std::uint32_t first = first_of_pair(o, h.element);
    if (static_cast<std::uint32_t>(rank) == first) return paired_number(o, format, h.element, 1);
    return static_cast<std::uint32_t>(rank) == second_of_pair(o, h.element, first)
               ? paired_number(o, format, h.element, 2)
               : 0.0;
  }
  const std::int64_t x = whole(o, h, rank, position);
  if (o.reduction != Reduction::prod)
    return x == 0 ? 0.0 : static_cast<double>(x) * scale_of(o, h.element);
  const double power = power_of_minus_two(x);
  return rank == odd_rank(o, position) ? power * significand(format, h.element) : power;
}

/// All ranks' numbers added or multiplied; an average's before it is divided.
SHAKEDOWN_HOST_DEVICE inline double total(const Operands& o, Format format,
                                          std::uint64_t position) {
  const Hashes h = hashes_at(o, position);
  if (o.paired)
    return paired_number(o, format, h.element, 1) + paired_number(o, format, h.element, 2);
  const std::int64_t x = whole_sum(o, h, position);
  if (o.reduction == Reduction::prod) return power_of_minus_two(x) * significand(format, h.element);
  return x == 0 ? 0.0 : static_cast<double>(x) * scale_of(o, h.element);
}

/// The quotient's bits, towards zero as transports divide.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t divided(Format format, std::uint64_t sum, int ranks) {
  if (!format.is_signed) return sum / static_cast<std::uint64_t>(ranks);
  return static_cast<std::uint64_t>(number_format::sign_extended(format, sum) / ranks);
}

}  // namespace detail

/// The bits of the element that `rank` holds at `position`.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t input_bits(const Operands& o, int rank,
                                                      std::uint64_t position) {
  using namespace detail;
  const Format format = format_of(o.type);
  if (!o.combined)
    return hash(hash(o.key, position), static_cast<std::uint64_t>(rank)) >> (64 - format.width);
  if (ordered(o.reduction)) return ranked_bits(o, format, hash(o.key, position), rank);
  if (format.exponent > 0) return encode(format, number(o, format, rank, position));
  const std::int64_t x = whole(o, hashes_at(o, position), rank, position);
  return low_bits(o.reduction == Reduction::prod ? power_of_minus_five(x, format.width)
                                                 : static_cast<std::uint64_t>(x),
                  format.width);
}

/// The bits that all ranks' elements at `position` combine to.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t combined_bits(const Operands& o,
                                                         std::uint64_t position) {
  using namespace detail;
  const Format format = format_of(o.type);
  if (ordered(o.reduction)) {
    const std::uint64_t h = hash(o.key, position);
    return ranked_bits(o, format, h, extreme_rank(o, h));
  }
  if (format.exponent > 0) {
    const double all = total(o, format, position);
    return encode(format, o.reduction == Reduction::avg ? all / o.ranks : all);
  }
  const std::int64_t x = whole_sum(o, hashes_at(o, position), position);
  if (o.reduction == Reduction::prod)
    return low_bits(power_of_minus_five(x, format.width), format.width);
  const auto sum = static_cast<std::uint64_t>(x);
  return low_bits(o.reduction == Reduction::avg ? divided(format, sum, o.ranks) : sum,
                  format.width);
}

/// The expected result of an operation: `source` is a rank, or kAllRanks.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t expected_bits(const Operands& o, int source,
                                                         std::uint64_t position) {
  return source == kAllRanks ? combined_bits(o, position) : input_bits(o, source, position);
}

/// Bitwise; paired averages may differ by 2 units in the last place.
SHAKEDOWN_HOST_DEVICE inline bool fits(const Operands& o, std::uint64_t expected,
                                       std::uint64_t found) {
  if (expected == found) return true;
  if (!o.paired) return false;
  const int width = detail::format_of(o.type).width;
  const auto ordered = [width](std::uint64_t bits) {  // steps of one from number to number
    const auto magnitude = static_cast<std::int64_t>(detail::low_bits(bits, width - 1));
    return (bits >> (width - 1)) != 0 ? -magnitude : magnitude;
  };
  const std::int64_t ulps = ordered(expected) - ordered(found);
  return ulps >= -2 && ulps <= 2;
}

}  // namespace shakedown::operands
