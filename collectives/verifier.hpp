// Fills buffers with a pattern and checks what an operation made of it, where the memory is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown::collectives {

// Data whose results are known to the bit, in whatever order a transport combines the ranks: a
// function of rank, position and seed (which differs by operation), shared by both backends'
// kernels and by the report of wrong elements.

/// The ranks' data before an operation.
struct Pattern {
  DataType type = DataType::float32;
  bool combined = false;  // by `reduction`; else elements are only moved: any bits will do
  Reduction reduction = Reduction::sum;
  int ranks = 1;
  std::uint64_t seed = 0;
};

/// The source of an expected element: one rank's, or all ranks' combined.
inline constexpr int kAllRanks = -1;

namespace pattern {

using number_format::encode;
using number_format::Format;
using number_format::format_of;
using number_format::low_bits;
using number_format::mix;
using number_format::sign_extended;

/// A power of two from 2^-3 to 2^4 with a sign, by the four lowest bits; assembled without
/// branches, which random bits would mispredict.
SHAKEDOWN_HOST_DEVICE inline double scale_of(std::uint64_t hash) {
  const std::uint64_t bits = ((hash & 8U) << 60) | ((1023 - 3 + (hash & 7U)) << 52);
  double scale = 0;
  std::memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

/// Whole numbers whose sum over all ranks is at most `most`; where there are more ranks than that,
/// zeros and ones.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t share(std::uint64_t most, int ranks, int rank,
                                                 std::uint64_t position_hash,
                                                 std::uint64_t rank_hash) {
  const auto n = static_cast<std::uint64_t>(ranks);
  if (most >= n) return low_bits(rank_hash, floor_log2(most / n + 1));  // division is slow
  const std::uint64_t stride = (n + most - 1) / most;
  return (static_cast<std::uint64_t>(rank) + (position_hash >> 8)) % stride == 0 ? 1 : 0;
}

/// A rank's element as a number, for combining in floating point. Magnitudes are whole numbers of
/// at most the significand's bits, times a power of two that all ranks share, so that
///   sum   has partial sums that are all exact;
///   prod  has one rank with a significand, at most five with a factor of two, the others +-1;
///   avg   has two ranks that are not zero, which bounds its error by 2 units in the last place
///         whether a transport divides before or after it adds;
///   min and max take any of them.
SHAKEDOWN_HOST_DEVICE inline double number(const Pattern& p, Format format, int rank,
                                           std::uint64_t h, std::uint64_t h_rank) {
  const std::uint64_t most = std::uint64_t{1} << format.mantissa;
  const auto n = static_cast<std::uint64_t>(p.ranks);
  const auto r = static_cast<std::uint64_t>(rank);
  const double magnitude = static_cast<double>(1 + low_bits(h_rank >> 8, format.mantissa));
  switch (p.reduction) {
    case Reduction::sum: {
      const std::uint64_t k = share(most, p.ranks, rank, h, h_rank >> 8);
      return k == 0 ? 0.0 : static_cast<double>(k) * scale_of(h);
    }
    case Reduction::prod: {
      const double sign = (h_rank & 1U) != 0 ? -1.0 : 1.0;
      if (r == (h >> 8) % n) return sign * magnitude;
      const std::uint64_t stride = (n + 3) / 4;
      if ((r + (h >> 20)) % stride != 0) return sign;
      return sign * ((h_rank & 2U) != 0 ? 2.0 : 0.5);
    }
    case Reduction::avg: {
      const std::uint64_t first = (h >> 8) % n;
      const bool second = n > 1 && r == (first + 1 + (h >> 24) % (n - 1)) % n;
      return r == first || second ? magnitude * scale_of(h) : 0.0;
    }
    default: return magnitude * scale_of(h_rank);
  }
}

/// A rank's element as an integer's bits. Products wrap around, which is exact in any order; sums
/// stay in range, as Open MPI's of 8 bits saturate.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t integer(const Pattern& p, Format format, int rank,
                                                   std::uint64_t h, std::uint64_t h_rank) {
  if (p.reduction == Reduction::sum || p.reduction == Reduction::avg)
    return share(low_bits(~std::uint64_t{0}, format.mantissa), p.ranks, rank, h, h_rank >> 8);
  const std::uint64_t bits = low_bits(h_rank >> (64 - format.width), format.width);
  return p.reduction == Reduction::prod ? bits | 1U : bits;  // products of even ones end at zero
}

SHAKEDOWN_HOST_DEVICE inline std::uint64_t position_hash(const Pattern& p, std::uint64_t position) {
  return mix(p.seed + (position + 1) * 0x9E3779B97F4A7C15U);
}
SHAKEDOWN_HOST_DEVICE inline std::uint64_t rank_hash(std::uint64_t position_hash, int rank) {
  return mix(position_hash ^ (static_cast<std::uint64_t>(rank + 1) * 0xD1342543DE82EF95U));
}

}  // namespace pattern

/// The bits of the element that `rank` holds at `position`.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t input_bits(const Pattern& p, int rank,
                                                      std::uint64_t position) {
  using namespace pattern;
  const Format format = format_of(p.type);
  const std::uint64_t h = position_hash(p, position);
  const std::uint64_t h_rank = rank_hash(h, rank);
  if (!p.combined) return h_rank >> (64 - format.width);
  if (format.exponent == 0) return integer(p, format, rank, h, h_rank);
  return encode(format, number(p, format, rank, h, h_rank));
}

/// The bits that all ranks' elements at `position` combine to.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t combined_bits(const Pattern& p, std::uint64_t position) {
  using namespace pattern;
  const Format format = format_of(p.type);
  const std::uint64_t h = position_hash(p, position);
  if (format.exponent == 0) {
    std::uint64_t all = integer(p, format, 0, h, rank_hash(h, 0));
    for (int r = 1; r < p.ranks; ++r) {
      const std::uint64_t x = integer(p, format, r, h, rank_hash(h, r));
      const bool less =
          format.is_signed ? sign_extended(format, x) < sign_extended(format, all) : x < all;
      switch (p.reduction) {
        case Reduction::prod: all *= x; break;
        case Reduction::min: all = less ? x : all; break;
        case Reduction::max: all = less ? all : x; break;
        default: all += x;
      }
    }
    if (p.reduction == Reduction::avg) all /= static_cast<std::uint64_t>(p.ranks);
    return low_bits(all, format.width);
  }
  double all = number(p, format, 0, h, rank_hash(h, 0));
  for (int r = 1; r < p.ranks; ++r) {
    const double x = number(p, format, r, h, rank_hash(h, r));
    switch (p.reduction) {
      case Reduction::prod: all *= x; break;
      case Reduction::min: all = x < all ? x : all; break;
      case Reduction::max: all = x < all ? all : x; break;
      default: all += x;
    }
  }
  return encode(format, p.reduction == Reduction::avg ? all / p.ranks : all);
}

/// The expected result of an operation: `source` is a rank, or kAllRanks.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t expected_bits(const Pattern& p, int source,
                                                         std::uint64_t position) {
  return source == kAllRanks ? combined_bits(p, position) : input_bits(p, source, position);
}

/// Bitwise; averages of floating-point types may differ by 2 units in the last place.
SHAKEDOWN_HOST_DEVICE inline bool fits(const Pattern& p, std::uint64_t expected,
                                       std::uint64_t found) {
  if (expected == found) return true;
  const pattern::Format format = pattern::format_of(p.type);
  if (!p.combined || p.reduction != Reduction::avg || format.exponent == 0) return false;
  const auto ordered = [format](std::uint64_t bits) {  // steps of one from number to number
    const auto magnitude = static_cast<std::int64_t>(pattern::low_bits(bits, format.width - 1));
    return (bits >> (format.width - 1)) != 0 ? -magnitude : magnitude;
  };
  const std::int64_t ulps = ordered(expected) - ordered(found);
  return ulps >= -2 && ulps <= 2;
}

/// The result of checks; in device memory while they run.
struct Mismatches {
  unsigned long long wrong = 0;      // elements
  unsigned long long first = ~0ULL;  // the lowest index among them
};

/// The action of a verdict on wrong data.
inline constexpr const char* kWrongDataAction =
    "launch/variants shows with which transports they occur";

/// Calls body with an unsigned integer of the type's width.
template <class Body>
void with_width(DataType type, Body&& body) {
  switch (size_of(type)) {
    case 1: return body(std::uint8_t{});
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

/// Work is enqueued on the stream. Views may be device memory or memory from
/// Communicator::allocate.
class Verifier {
 public:
  virtual ~Verifier() = default;
  /// to[i] = what `rank` holds at position first + i.
  virtual void fill(View to, const Pattern& pattern, int rank, std::uint64_t first,
                    Stream& stream) const = 0;
  /// Overwrites with ones (NaN, -1): what an earlier iteration left cannot pass for a result.
  virtual void poison(View to, Stream& stream) const = 0;
  /// Compares found[i] with what comes from `source` at position first + i; a mismatch counts at
  /// index + i.
  virtual void check(ConstView found, const Pattern& pattern, int source, std::uint64_t first,
                     std::uint64_t index, Mismatches* result, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<Verifier> make_verifier();
}
namespace gpu {
std::unique_ptr<Verifier> make_verifier();
}
/// Throws UsageError where the backend is not built.
inline std::unique_ptr<Verifier> make_verifier(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_verifier() : cpu::make_verifier();
}

}  // namespace shakedown::collectives
