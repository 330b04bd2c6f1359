#include "common/operands/operands.hpp"

#include <algorithm>
#include <cmath>

#include "common/ensure.hpp"

namespace shakedown::operands {
namespace {

using number_format::Format;
using number_format::format_of;

constexpr std::uint64_t kWideBudget = std::uint64_t{1} << 62;

/// The least prime that is at least n.
std::uint32_t prime_from(std::uint32_t n) {
  const auto is_prime = [](std::uint32_t p) {
    for (std::uint32_t d = 2; d * d <= p; ++d)
      if (p % d == 0) return false;
    return true;
  };
  while (!is_prime(n)) ++n;
  return n;
}

/// Whole numbers up to it are exact: of sums in the type itself, of products in their exponents.
std::uint64_t budget_of(DataType type, Reduction reduction) {
  const Format format = format_of(type);
  if (reduction == Reduction::prod) switch (type) {
      case DataType::float64: return 1000;
      case DataType::float32:
      case DataType::bfloat16: return 120;
      case DataType::float16:
      case DataType::float8_e5m2: return 14;
      case DataType::float8_e4m3: return 6;
      default: return kWideBudget;  // exponents of a product that wraps
    }
  if (format.exponent > 0) return std::uint64_t{1} << (format.mantissa + 1);
  return format.width == 64 ? kWideBudget : number_format::low_bits(~0ULL, format.mantissa);
}

Layout layout_of(std::uint64_t budget, bool is_signed, int ranks, std::uint64_t unit_elements) {
  Layout l;
  l.prime = prime_from(static_cast<std::uint32_t>(std::max(ranks, 2)));
  l.reciprocal = (std::uint64_t{1} << 48) / l.prime + 1;
  l.is_signed = is_signed;
  const std::uint64_t p = l.prime;
  const std::uint64_t each = budget / (2 * p);
  l.most = is_signed ? each : (std::max<std::uint64_t>(each, 1) - 1) / 2;
  l.dense = l.most >= 1;
  if (l.dense) {
    const std::uint64_t half = std::max<std::uint64_t>(p / 2, 1);
    l.step = l.most / 2 / half;
    l.spread = l.most - l.step * half;
    l.bias = is_signed ? 0 : static_cast<std::int64_t>(l.most) + 1;
    l.rest = static_cast<std::int64_t>(budget - p * (l.most + static_cast<std::uint64_t>(l.bias)));
    return l;
  }
  std::uint64_t block = unit_elements;
  while (2 * p > block * (budget / 2)) block *= 2;
  l.block_bits = floor_log2(block);
  // neighbours in one 16-byte unit: no single element can be one rank's
  const std::uint64_t most = is_signed ? block : block / 2;  // ones everywhere would name nobody
  l.slots = static_cast<std::uint32_t>(
      block > unit_elements ? 2 : std::min(most, block * (budget / 2) / p));
  l.rest = static_cast<std::int64_t>(budget - (p * l.slots + block - 1) / block);
  return l;
}

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

}  // namespace

Operands make_operands(DataType type, bool combined, Reduction reduction, int ranks,
                       std::uint64_t seed, std::uint64_t iteration) {
  ENSURE(ranks >= 1 && ranks <= kMostRanks, "ranks whose places are exact");
  const Format format = format_of(type);
  Operands o;
  o.type = type;
  o.combined = combined;
  o.reduction = reduction;
  o.ranks = ranks;
  o.seed = seed;
  const std::uint64_t unit_elements = kUnitBytes / size_of(type);
  o.unit_bits = floor_log2(unit_elements);
  o.layout = layout_of(budget_of(type, reduction), format.is_signed || reduction == Reduction::prod,
                       ranks, unit_elements);
  const bool divides_floats = combined && reduction == Reduction::avg && format.exponent > 0;
  o.paired = divides_floats && !is_power_of_two(ranks);
  if (divides_floats && type == DataType::float8_e4m3) {  // 1/512 is its least number
    o.lowest_scale = 1;
    o.scales = 3;
  }
  return at_iteration(o, iteration);
}

Operands at_iteration(Operands o, std::uint64_t iteration) {
  o.iteration = iteration;
  o.key = number_format::hash(number_format::mix(o.seed ^ 0xD1342543DE82EF95U), iteration);
  return o;
}

bool checkable(const Operands& o) {
  if (!o.combined || o.reduction != Reduction::avg) return true;
  const Format format = format_of(o.type);
  if (format.exponent == 0)
    return 4 * static_cast<std::uint64_t>(o.ranks) <= budget_of(o.type, o.reduction);
  return o.type != DataType::float8_e4m3 || (is_power_of_two(o.ranks) && o.ranks < 1024);
}

double log2_values(const Operands& o, int source) {
  const Format format = format_of(o.type);
  if (source != kAllRanks) return format.width;
  if (detail::ordered(o.reduction)) return detail::ordered_bits(format) - 4;
  const bool floating = format.exponent > 0;
  if (!floating && o.reduction == Reduction::prod) return format.width - 2;
  if (o.paired) return format.mantissa + 1;  // scale and sign, less the tolerance
  double values = static_cast<double>(o.layout.rest) * (o.layout.is_signed ? 2 : 1) + 1;
  if (o.reduction == Reduction::avg && !floating)  // towards zero: 0 is twice as frequent
    values = std::max(1.0, values / (o.layout.is_signed ? 2 * o.ranks - 1 : o.ranks));
  return std::log2(values) + (floating && o.reduction != Reduction::prod ? 2 : 0);
}

std::size_t decodable_bytes(const Operands& o) {
  constexpr std::size_t kLeast = 512;
  constexpr std::size_t kMost = std::size_t{128} << 10;
  constexpr double kBits = 42;  // 2^-20 against 2^22 hypotheses
  if (!o.combined || o.paired) return kLeast;
  const auto shares_for = [&](double least) {
    return std::max(least, std::ceil(kBits / std::max(0.5, log2_values(o, kAllRanks))));
  };
  double elements = 0;
  if (detail::ordered(o.reduction)) {  // by chance: three times the spread more
    const double shares = shares_for(3);
    elements = o.ranks * (shares + 3 * std::sqrt(shares) + 4);
  } else if (!o.layout.dense) {
    elements = std::ldexp(std::max(6.0, shares_for(0) / o.layout.slots), o.layout.block_bits);
  }
  return std::clamp(static_cast<std::size_t>(elements) * size_of(o.type), kLeast, kMost);
}

}  // namespace shakedown::operands
