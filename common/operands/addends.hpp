// A result in which one rank's addend is missing, doubled or old, from the closed form.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/operands/decoder.hpp"
#include "common/operands/operands.hpp"

namespace shakedown::operands {

namespace detail {

/// Of finite numbers.
inline bool less(Format format, std::uint64_t a, std::uint64_t b) {
  if (format.exponent > 0)
    return number_format::decode(format, a) < number_format::decode(format, b);
  return format.is_signed
             ? number_format::sign_extended(format, a) < number_format::sign_extended(format, b)
             : a < b;
}

/// The bits of the largest number of a floating type; the next ones are infinity, or NaN.
inline std::uint64_t largest_bits(Format format) {
  const std::uint64_t magnitude = low_bits(~0ULL, format.width - 1);
  const bool has_infinity = format.exponent != 4;  // float8_e4m3 has none
  return magnitude - (has_infinity ? std::uint64_t{1} << format.mantissa : 1);
}

/// Bits that no element of the type has where it cannot hold the value.
inline std::uint64_t encode_or_none(Format format, double value) {
  if (format.width < 32 &&
      !(std::abs(value) <= number_format::decode(format, largest_bits(format))))
    return std::uint64_t{1} << 32;
  return encode(format, value);
}

}  // namespace detail

/// The bits of the result of all ranks at `position` where `rank`'s addend is missing, doubled or,
/// as stale_addend, what `then` has at `then_position`. A minimum or maximum with a doubled one is
/// right.
inline std::uint64_t with_addend(const Operands& o, WrongData kind, int rank,
                                 std::uint64_t position, const Operands& then,
                                 std::uint64_t then_position) {
  using namespace detail;
  const Format format = format_of(o.type);
  const bool missing = kind == WrongData::missing_addend;
  const bool doubled = kind == WrongData::doubled_addend;
  if (ordered(o.reduction)) {
    const auto better = [&](std::uint64_t a, std::uint64_t b) {
      return less(format, a, b) == (o.reduction == Reduction::min) ? a : b;
    };
    std::uint64_t all = combined_bits(o, position);
    if (doubled) return all;
    if (rank == extreme_rank(o, hash(o.key, position))) {
      if (o.ranks == 1) return missing ? all : input_bits(then, rank, then_position);
      all = input_bits(o, rank == 0 ? 1 : 0, position);
      for (int r = 0; r < o.ranks; ++r)
        if (r != rank) all = better(all, input_bits(o, r, position));
    }
    return missing ? all : better(all, input_bits(then, rank, then_position));
  }
  if (format.exponent > 0) {
    const double all = total(o, format, position);
    const double x = number(o, format, rank, position);
    const double old = doubled || missing ? 0 : number(then, format, rank, then_position);
    if (o.reduction == Reduction::prod)
      return encode_or_none(format, doubled ? all * x : missing ? all / x : all / x * old);
    const double sum = doubled ? all + x : all - x + old;
    return encode_or_none(format, o.reduction == Reduction::avg ? sum / o.ranks : sum);
  }
  const auto all = static_cast<std::uint64_t>(whole_sum(o, hashes_at(o, position), position));
  const auto x = static_cast<std::uint64_t>(whole(o, hashes_at(o, position), rank, position));
  const auto old = doubled || missing
                       ? 0
                       : static_cast<std::uint64_t>(
                             whole(then, hashes_at(then, then_position), rank, then_position));
  const std::uint64_t sum = doubled ? all + x : all - x + old;
  if (o.reduction == Reduction::prod)
    return low_bits(power_of_minus_five(static_cast<std::int64_t>(sum), format.width),
                    format.width);
  return low_bits(
      o.reduction == Reduction::avg ? divided(format, low_bits(sum, format.width), o.ranks) : sum,
      format.width);
}

/// Such a result in a floating type, where its bits depend on the order of the additions: those of
/// a doubled or an old addend leave what is exact.
struct Estimate {
  double value = 0;
  double tolerance = 0;  // 0: exact
};

/// Of a sum, average or product of numbers; a missing addend leaves all exact.
inline Estimate estimate(const Operands& o, WrongData kind, int rank, std::uint64_t position,
                         const Operands& then, std::uint64_t then_position) {
  using namespace detail;
  const Format format = format_of(o.type);
  const bool doubled = kind == WrongData::doubled_addend;
  const double all = total(o, format, position);
  const double x = number(o, format, rank, position);
  const double old = doubled ? 0 : number(then, format, rank, then_position);
  if (o.reduction == Reduction::prod) {
    const double product = doubled ? all * x : all / x * old;
    return {product, std::ldexp(std::abs(product), -format.mantissa)};
  }
  const double scale = scale_of(o, hash(o.key, position));
  const double finest =
      doubled ? scale : std::min(scale, scale_of(then, hash(then.key, then_position)));
  const double sum = doubled ? all + x : all - x + old;
  const double budget = std::ldexp(1.0, format.mantissa + 1);
  const double added = std::abs(doubled ? x : old);
  const double on_the_way = static_cast<double>(o.layout.most) * std::sqrt(o.ranks) * scale;
  const double largest = std::max(std::abs(all), std::abs(sum)) + added + on_the_way;
  double tolerance = 0;
  if (largest > 0 && budget * scale + added > budget * finest) {
    const double step = std::ldexp(1.0, std::ilogb(largest) - format.mantissa);
    tolerance = (1.5 + 0.25 * std::sqrt(o.ranks)) * step;
  }
  const double parts = o.reduction == Reduction::avg ? o.ranks : 1;
  return {sum / parts, tolerance / parts};
}

}  // namespace shakedown::operands
