#include "tests/support/injected_data.hpp"

#include <algorithm>
#include <cmath>

namespace shakedown::collectives {

using number_format::Format;
using number_format::format_of;
using number_format::low_bits;
using number_format::sign_extended;
using operands::at_iteration;
using operands::input_bits;
using operands::kAllRanks;
using operands::kUnitBytes;
using operands::Operands;
using operands::Region;
using operands::WrongData;

namespace {

/// All ranks' inputs combined in rank order, with the fault of `damage`.
std::uint64_t reduced(const Damage& damage, const Operands& o, const Operands& then,
                      std::uint64_t position, std::uint64_t then_position) {
  const Format format = format_of(o.type);
  std::uint64_t all = 0;
  bool any = false;
  const auto add = [&](std::uint64_t x) {
    all = any ? combined_in_type(o.type, o.reduction, all, x) : x;
    any = true;
  };
  for (int r = 0; r < o.ranks; ++r) {
    const bool hit = r == damage.rank;
    if (hit && damage.kind == WrongData::missing_addend && o.ranks > 1) continue;
    add(hit && damage.kind == WrongData::stale_addend ? input_bits(then, r, then_position)
                                                      : input_bits(o, r, position));
    if (hit && damage.kind == WrongData::doubled_addend) add(input_bits(o, r, position));
  }
  if (o.reduction != Reduction::avg) return all;
  if (format.exponent > 0)
    return number_format::encode(format, number_format::decode(format, all) / o.ranks);
  const auto ranks = static_cast<std::uint64_t>(o.ranks);
  return low_bits(format.is_signed
                      ? static_cast<std::uint64_t>(sign_extended(format, all) / o.ranks)
                      : all / ranks,
                  format.width);
}

}  // namespace

std::uint64_t combined_in_type(DataType type, Reduction reduction, std::uint64_t a,
                               std::uint64_t b) {
  const Format format = format_of(type);
  if (format.exponent > 0) {
    const double x = number_format::decode(format, a);
    const double y = number_format::decode(format, b);
    const double value = reduction == Reduction::prod  ? x * y
                         : reduction == Reduction::min ? std::min(x, y)
                         : reduction == Reduction::max ? std::max(x, y)
                                                       : x + y;
    // infinity, or NaN in the type that has none, absorbs what follows
    const std::uint64_t infinity = low_bits(~0ULL, format.exponent) << format.mantissa;
    const bool is_e4m3 = type == DataType::float8_e4m3;
    const std::uint64_t out = is_e4m3 ? 0x7F : infinity;
    const double most = number_format::decode(format, is_e4m3 ? 0x7E : infinity - 1);
    const auto is_out = [&](std::uint64_t bits) {
      const std::uint64_t magnitude = low_bits(bits, format.width - 1);
      return is_e4m3 ? magnitude == 0x7F : magnitude >= infinity;
    };
    if (is_out(a) || is_out(b) || !(std::abs(value) <= most)) return out;
    return number_format::encode(format, value);
  }
  const bool less = format.is_signed ? sign_extended(format, a) < sign_extended(format, b) : a < b;
  switch (reduction) {
    case Reduction::prod: return low_bits(a * b, format.width);
    case Reduction::min: return less ? a : b;
    case Reduction::max: return less ? b : a;
    default: return low_bits(a + b, format.width);
  }
}

bool applies(const Damage& damage, const Operands& o) {
  switch (damage.kind) {
    case WrongData::missing_addend:
    case WrongData::stale_addend: return o.combined && damage.rank < o.ranks;
    case WrongData::doubled_addend:
      return o.combined && damage.rank < o.ranks && o.reduction != Reduction::min &&
             o.reduction != Reduction::max;
    default: return true;
  }
}

void apply(const Damage& damage, const Operands& o, std::size_t first, std::size_t count,
           Region& region) {
  if (!applies(damage, o)) return;
  const Format format = format_of(o.type);
  const std::size_t size = size_of(o.type);
  const auto age = static_cast<std::uint64_t>(damage.age);
  const std::uint64_t iterations = age * region.earlier.iterations;
  const std::uint64_t elements = age * region.earlier.elements;
  const bool is_old = damage.kind == WrongData::stale || damage.kind == WrongData::torn ||
                      damage.kind == WrongData::stale_addend;
  if (is_old && iterations > o.iteration) return;
  const Operands then = at_iteration(o, o.iteration - (is_old ? iterations : 0));
  const auto result = [&](const Operands& of, int source, std::uint64_t position) {
    return source == kAllRanks ? reduced({}, of, of, position, position)
                               : input_bits(of, source, position);
  };
  const std::size_t end = std::min(first + count, region.found.size());
  for (std::size_t i = first; i < end; ++i) {
    const std::uint64_t position = region.position + i;
    const std::size_t in_line =
        (static_cast<std::size_t>(std::max(region.line_unit, 0)) * kUnitBytes + i * size) % 128;
    if (is_old && position < elements) continue;
    std::uint64_t& x = region.found[i];
    switch (damage.kind) {
      case WrongData::torn:
        if (in_line < 128 - damage.torn_bytes) break;
        [[fallthrough]];
      case WrongData::stale: x = result(then, region.source, position - elements); break;
      case WrongData::misrouted: {
        if (region.source != kAllRanks && o.ranks > 1 && damage.rank != region.source) {
          x = input_bits(o, damage.rank, position);
          break;
        }
        const std::int64_t by = damage.offset_bytes / static_cast<std::int64_t>(size);
        x = result(o, region.source,
                   static_cast<std::uint64_t>(static_cast<std::int64_t>(position) + by));
        break;
      }
      case WrongData::missing_addend:
      case WrongData::doubled_addend:
      case WrongData::stale_addend:
        x = reduced(damage, o, then, position, position - elements);
        break;
      case WrongData::unwritten:
        x = region.before.empty() ? low_bits(~std::uint64_t{0}, format.width) : region.before[i];
        break;
      case WrongData::bit_flip:
        if (i == first) x ^= std::uint64_t{1} << (damage.bit % format.width);
        break;
      case WrongData::unknown:
        x = number_format::hash(0x51ED270B7F4A7C15U, position) >> (64 - format.width);
        break;
    }
  }
}

}  // namespace shakedown::collectives
