#include "common/operands/decoder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "common/operands/addends.hpp"

namespace shakedown::operands {
namespace {

constexpr double kChanceBits = 20;
constexpr int kOldest = 3;                             // iterations
constexpr std::int64_t kNear = std::int64_t{1} << 16;  // 16-byte units, either way
constexpr std::int64_t kFarBytes = 4096;
constexpr std::int64_t kMostRoutes = std::int64_t{1} << 18;  // of other ranks
constexpr std::size_t kLineUnits = 8;                        // of 128 bytes

struct Kind {
  WrongData kind;
  const char* name;
  const char* cause;
  const char* action;
};

// From what is known to do so: PCIe writes that overtake one another (relaxed ordering, GPU-direct
// without a flush), LL128 where lines of 128 bytes are not written whole (NCCL's NCCL_PROTO).
constexpr const char* kOrdering =
    "run launch/variants: without LL128, without GPU-direct, without PCIe relaxed ordering "
    "(NCCL_IB_PCI_RELAXED_ORDERING=0)";
constexpr const char* kReduction =
    "run launch/variants, and bin/soak and bin/compute_perf on that rank's GPU";
constexpr std::array<Kind, kWrongData> kKinds{{
    {WrongData::stale, "stale", "ordering: data were read before they had arrived", kOrdering},
    {WrongData::torn, "torn", "ordering: parts of lines were read before they had arrived",
     kOrdering},
    {WrongData::misrouted, "misrouted", "routing: data went to another place, or came from one",
     "run launch/variants, and bin/link_matrix for the path between these ranks"},
    {WrongData::missing_addend, "missing_addend",
     "arithmetic: the reduction, or the path from that rank", kReduction},
    {WrongData::doubled_addend, "doubled_addend",
     "arithmetic: the reduction, or the path from that rank", kReduction},
    {WrongData::stale_addend, "stale_addend",
     "arithmetic: the reduction read that rank's data too early, or old ones", kReduction},
    {WrongData::unwritten, "unwritten",
     "completion: the operation ended before its data were written",
     "run launch/variants, and bin/collective_perf --blocking 1"},
    {WrongData::bit_flip, "bit_flip", "memory: of the device, the host or a link",
     "run bin/soak on that rank's GPU, and node_check for ECC and link errors"},
    {WrongData::unknown, "unknown", "unknown: no single cause gives these data",
     "launch/variants shows with which transports they occur"},
}};

const Kind& row_of(WrongData kind) { return kKinds[static_cast<std::size_t>(kind)]; }

/// The pieces of 128-byte lines that are wrong.
struct Tearing {
  int bytes = 0;   // of a piece: the common divisor of starts and lengths; 0: not in pieces
  int pieces = 0;  // lines of which a part is wrong
};

Tearing tearing_of(const std::vector<bool>& wrong_units, int line_unit) {
  if (line_unit < 0 || std::ranges::count(wrong_units, false) == 0) return {};
  const auto offset = static_cast<std::size_t>(line_unit);
  std::vector<std::size_t> in_line((offset + wrong_units.size()) / kLineUnits + 1);
  std::size_t divisor = kLineUnits;
  std::size_t length = 0;
  for (std::size_t u = 0; u <= wrong_units.size(); ++u) {
    if (u < wrong_units.size() && wrong_units[u]) {
      ++in_line[(offset + u) / kLineUnits];
      if (++length > kLineUnits) return {};
    } else if (length > 0) {
      divisor = std::gcd(std::gcd(divisor, length), offset + u - length);
      length = 0;
    }
  }
  Tearing tearing{static_cast<int>(divisor * kUnitBytes), 0};
  for (const std::size_t units : in_line)
    if (units > 0 && units < kLineUnits) ++tearing.pieces;
  return tearing;
}

class Decoder {
 public:
  Decoder(const Operands& o, const Region& region) : o_(o), r_(region) {
    right_.reserve(r_.found.size());
    for (std::size_t i = 0; i < r_.found.size(); ++i) {
      right_.push_back(expected_bits(o_, r_.source, r_.position + i));
      if (!fits(o_, right_[i], r_.found[i])) wrong_.push_back(i);
    }
    if (wrong_.empty()) return;
    wrong_units_.resize(unit_of(r_.found.size() - 1) + 1);
    for (const std::size_t i : wrong_) wrong_units_[unit_of(i)] = true;
    bits_ = static_cast<double>(wrong_.size()) * log2_values(o_, r_.source);
    adds_ = o_.combined && r_.source == kAllRanks;
    tried_ = std::log2(1 + kOldest + (adds_ ? 3.0 * o_.ranks : 0) + routes());
  }

  std::optional<Decoded> decode() {
    if (wrong_.empty()) return std::nullopt;
    if (!checkable(o_)) return Decoded{};
    try_whole_results();
    if (!(hits_.size() == 1 && enough()) && adds_) try_addends();
    if (hits_.empty()) try_routes();
    if (hits_.empty() && rounds()) try_rounded_addends();
    if (is_one_bit()) return one_bit();
    return conclude();
  }

 private:
  std::size_t unit_of(std::size_t i) const {
    return static_cast<std::size_t>(((r_.position + i) >> o_.unit_bits) -
                                    (r_.position >> o_.unit_bits));
  }
  bool enough() const { return bits_ >= tried_ + kChanceBits; }
  /// Whether each rank has a share in every element.
  bool everywhere() const {
    return !adds_ || (!detail::ordered(o_.reduction) && !o_.paired && o_.layout.dense);
  }

  /// Whether `bits` of an index are found at all wrong elements, and would change no right one of
  /// the wrong units (or, `through`, from the first to the last of these).
  template <class Bits>
  bool explains(Bits&& bits, bool through = false) const {
    for (const std::size_t i : {wrong_.front(), wrong_[wrong_.size() / 2], wrong_.back()})
      if (!fits(o_, bits(i), r_.found[i])) return false;
    const std::size_t first = unit_of(wrong_.front());
    const std::size_t last = unit_of(wrong_.back());
    for (std::size_t i = 0; i < r_.found.size(); ++i) {
      const std::size_t unit = unit_of(i);
      if (unit < first || unit > last || !(through || wrong_units_[unit])) continue;
      if (!fits(o_, bits(i), r_.found[i])) return false;
    }
    return true;
  }

  void try_whole_results() {
    const std::uint64_t poison =
        detail::low_bits(~std::uint64_t{0}, detail::format_of(o_.type).width);
    if (explains([&](std::size_t i) { return r_.before.empty() ? poison : r_.before[i]; }))
      hits_.push_back({.kind = WrongData::unwritten});
    for (int age = 1; age <= kOldest; ++age) {
      const Earlier back = earlier(age);
      if (back.iterations > o_.iteration || back.elements > r_.position) continue;
      const Operands then = at_iteration(o_, o_.iteration - back.iterations);
      if (explains([&](std::size_t i) {
            return expected_bits(then, r_.source, r_.position + i - back.elements);
          }))
        hits_.push_back({.kind = WrongData::stale, .age = age});
    }
  }

  void try_addends() {
    const Earlier back = earlier(1);
    const bool has_earlier = back.iterations <= o_.iteration && back.elements <= r_.position;
    const Operands then = at_iteration(o_, o_.iteration - (has_earlier ? back.iterations : 0));
    for (const WrongData kind :
         {WrongData::missing_addend, WrongData::doubled_addend, WrongData::stale_addend}) {
      if (kind == WrongData::stale_addend && !has_earlier) continue;
      for (int rank = 0; rank < o_.ranks; ++rank)
        if (explains(
                [&](std::size_t i) {
                  return with_addend(o_, kind, rank, r_.position + i, then,
                                     r_.position + i - back.elements);
                },
                !everywhere()))
          hits_.push_back(
              {.kind = kind, .from_rank = rank, .age = kind == WrongData::stale_addend ? 1 : 0});
    }
  }

  /// Whether one addend too many, or an old one, makes additions round.
  bool rounds() const {
    return adds_ && !o_.paired && !detail::ordered(o_.reduction) &&
           detail::format_of(o_.type).exponent > 0;
  }

  /// As try_addends, within what the order of additions may change. Less evidence: an element
  /// counts where the right result is outside of that, and by the values that are.
  void try_rounded_addends() {
    const Earlier back = earlier(1);
    const bool has_earlier = back.iterations <= o_.iteration && back.elements <= r_.position;
    const Operands then = at_iteration(o_, o_.iteration - (has_earlier ? back.iterations : 0));
    const double exact_bits = bits_;
    double least = exact_bits;
    for (const WrongData kind : {WrongData::doubled_addend, WrongData::stale_addend}) {
      if (kind == WrongData::stale_addend && !has_earlier) continue;
      for (int rank = 0; rank < o_.ranks; ++rank) {
        const double bits = rounded_evidence([&](std::size_t i) {
          return estimate(o_, kind, rank, r_.position + i, then, r_.position + i - back.elements);
        });
        if (bits < tried_ + kChanceBits) continue;
        least = std::min(least, bits);
        hits_.push_back(
            {.kind = kind, .from_rank = rank, .age = kind == WrongData::stale_addend ? 1 : 0});
      }
    }
    bits_ = least;
  }

  /// What the wrong elements are worth; 0 where an estimate does not give one of them.
  template <class Estimates>
  double rounded_evidence(Estimates&& estimate_at) const {
    const detail::Format format = detail::format_of(o_.type);
    const double each = log2_values(o_, r_.source);
    const bool multiplies = o_.reduction == Reduction::prod;
    const double most = number_format::decode(format, detail::largest_bits(format));
    const double least = std::ldexp(1.0, 2 - (1 << (format.exponent - 1)));
    const auto gives = [&](std::size_t i, double& bits) {
      const Estimate e = estimate_at(i);
      if (detail::low_bits(r_.found[i], format.width - 1) > detail::largest_bits(format))
        return multiplies || std::abs(e.value) + e.tolerance >= most;  // perhaps on the way
      const double found = number_format::decode(format, r_.found[i]);
      if (multiplies && std::abs(found) < least) return true;
      if (!(std::abs(found - e.value) <= e.tolerance)) return false;
      const double step =
          std::ldexp(1.0, std::ilogb(std::max(std::abs(found), least)) - format.mantissa);
      if (std::abs(number_format::decode(format, right_[i]) - e.value) > e.tolerance)
        bits += std::max(0.0, each - std::log2(1 + 2 * e.tolerance / step));
      return true;
    };
    double unused = 0;
    for (const std::size_t i : {wrong_.front(), wrong_[wrong_.size() / 2], wrong_.back()})
      if (!gives(i, unused)) return 0;
    double bits = 0;
    for (std::size_t i = 0, next = 0; i < r_.found.size(); ++i) {
      const bool is_wrong = next < wrong_.size() && wrong_[next] == i;
      if (is_wrong) ++next;
      const std::size_t unit = unit_of(i);
      const bool within = everywhere()
                              ? bool{wrong_units_[unit]}
                              : unit >= unit_of(wrong_.front()) && unit <= unit_of(wrong_.back());
      double& counted = is_wrong ? bits : unused;
      if (within && !gives(i, counted)) return 0;
    }
    return bits;
  }

  void try_routes() {
    for_each_route([&](int source, std::int64_t elements) {
      if (explains([&](std::size_t i) {
            return expected_bits(
                o_, source,
                static_cast<std::uint64_t>(static_cast<std::int64_t>(r_.position + i) + elements));
          }))
        hits_.push_back({.kind = WrongData::misrouted,
                         .from_rank = source == r_.source ? -1 : source,
                         .from_offset = elements * static_cast<std::int64_t>(size_of(o_.type))});
      return hits_.size() < 2;
    });
  }

  /// Offsets in elements from which the data may have come: multiples of 16 bytes nearby, of 4 KiB
  /// and of a rank's part anywhere. Of another rank's data: of a part.
  struct Offsets {
    std::int64_t low, high;  // of all
    std::int64_t unit, far, part;
  };
  Offsets offsets() const {
    const std::int64_t unit = std::int64_t{1} << o_.unit_bits;
    const auto first = static_cast<std::int64_t>(r_.position + wrong_.front()) / unit * unit;
    const auto end = static_cast<std::int64_t>(r_.position + wrong_.back()) + 1;
    return {-first, static_cast<std::int64_t>(r_.extent) - end, unit,
            kFarBytes / static_cast<std::int64_t>(size_of(o_.type)),
            static_cast<std::int64_t>(r_.part)};
  }
  /// Their number, at most.
  double routes() const {
    const Offsets o = offsets();
    const double all = std::max(0.0, static_cast<double>(o.high - o.low));
    const double parts = o.part > 0 ? all / static_cast<double>(o.part) + 1 : 0;
    const double others = r_.source == kAllRanks ? 0 : o_.ranks * (1 + parts);
    return std::min(2.0 * kNear, all / static_cast<double>(o.unit)) +
           all / static_cast<double>(o.far) + parts + others;
  }

  /// Calls body(source, offset) for each route, none twice, until it is false.
  template <class Body>
  void for_each_route(Body&& body) const {
    const Offsets o = offsets();
    const std::int64_t near = kNear * o.unit;
    /// Multiples of `step` from low to high, without 0 and those that were `seen`.
    const auto multiples = [&](int source, std::int64_t step, std::int64_t low, std::int64_t high,
                               auto&& seen) {
      for (std::int64_t by = low / step * step; by <= high; by += step)
        if (by >= low && by != 0 && !seen(by) && !body(source, by)) return false;
      return true;
    };
    const auto none = [](std::int64_t) { return false; };
    const auto is_near = [&](std::int64_t by) { return by % o.unit == 0 && std::abs(by) <= near; };
    if (!multiples(r_.source, o.unit, std::max(o.low, -near), std::min(o.high, near), none) ||
        !multiples(r_.source, o.far, o.low, o.high, is_near) ||
        (o.part > 0 && !multiples(r_.source, o.part, o.low, o.high,
                                  [&](std::int64_t by) { return is_near(by) || by % o.far == 0; })))
      return;
    if (r_.source == kAllRanks) return;
    const bool by_parts = o.part > 0 && o_.ranks * ((o.high - o.low) / o.part + 1) <= kMostRoutes;
    for (int rank = 0; rank < o_.ranks; ++rank)
      if (rank != r_.source &&
          (!body(rank, 0) || (by_parts && !multiples(rank, o.part, o.low, o.high, none))))
        return;
  }

  bool is_one_bit() const {
    return wrong_.size() == 1 && std::popcount(right_[wrong_[0]] ^ r_.found[wrong_[0]]) == 1;
  }
  /// Where nothing else stands that has no free rank.
  Decoded one_bit() const {
    const bool alone = std::ranges::all_of(
        hits_, [](const Decoded& hit) { return hit.kind == WrongData::stale_addend; });
    return {.kind = alone ? WrongData::bit_flip : WrongData::unknown};
  }

  Decoded conclude() const {
    const Tearing tearing = tearing_of(wrong_units_, r_.line_unit);
    if (hits_.empty()) return torn_by_shape(tearing);
    const Decoded* found = &hits_.front();
    const auto alike = [&](const Decoded& hit) { return hit.kind == found->kind; };
    if (!std::ranges::all_of(hits_, alike)) {
      // less is assumed where a whole result explains all: it has no free rank
      const auto is_whole = [](const Decoded& hit) {
        return hit.kind == WrongData::unwritten || hit.kind == WrongData::stale;
      };
      if (std::ranges::count_if(hits_, is_whole) != 1) return {};
      found = &*std::ranges::find_if(hits_, is_whole);
    }
    const bool of_rank = found->kind == WrongData::missing_addend ||
                         found->kind == WrongData::doubled_addend ||
                         found->kind == WrongData::stale_addend;
    if (!enough() || (of_rank && wrong_.size() < fewest_shares())) return {};
    Decoded decoded = *found;
    decoded.chance_log2 = tried_ - bits_;
    if (std::ranges::count_if(hits_, alike) > 1) {  // the class is sure, its figures are not
      decoded.from_rank = -1;
      decoded.from_offset = 0;
      decoded.age = 0;
    }
    const bool tears = decoded.kind == WrongData::stale || decoded.kind == WrongData::unwritten ||
                       (decoded.kind == WrongData::stale_addend && everywhere());
    if (tears && tearing.bytes > 0 && wrong_.size() > 1 &&
        units_show(decoded.kind == WrongData::stale_addend)) {
      decoded.kind = WrongData::torn;
      decoded.torn_bytes = tearing.bytes;
    }
    return decoded;
  }

  /// What is in the pieces is not known, as of a ring's partial sum from a stale buffer; their
  /// shape is.
  Decoded torn_by_shape(const Tearing& tearing) const {
    if (tearing.bytes == 0 || tearing.bytes >= 128 || tearing.pieces < 3 || wrong_.size() < 6 ||
        !everywhere() || !units_show(true))
      return {};
    return {.kind = WrongData::torn, .torn_bytes = tearing.bytes, .chance_log2 = -kChanceBits};
  }

  /// Whether a wrong 16-byte unit cannot look right, where but one rank's addend may differ.
  bool units_show(bool by_addend) const {
    constexpr double kUnitBits = 12;
    const bool floating = detail::format_of(o_.type).exponent > 0;
    double bits = log2_values(o_, r_.source);
    if (by_addend && adds_ && everywhere() && (floating || o_.reduction != Reduction::prod))
      bits = std::min(bits, std::log2(2.0 * static_cast<double>(o_.layout.most)) +
                                (floating && o_.reduction != Reduction::prod ? 2 : 0));
    return std::ldexp(bits, o_.unit_bits) >= kUnitBits;
  }

  /// Elements that one rank's addend has to explain where it is not in each.
  std::size_t fewest_shares() const {
    if (everywhere()) return 1;
    return detail::ordered(o_.reduction) ? 3 : 8;
  }

  Earlier earlier(int age) const {
    const auto times = static_cast<std::uint64_t>(age);
    return {times * r_.earlier.iterations, times * r_.earlier.elements};
  }

  const Operands& o_;
  const Region& r_;
  std::vector<std::uint64_t> right_;
  std::vector<std::size_t> wrong_;  // indices
  std::vector<bool> wrong_units_;
  bool adds_ = false;
  double bits_ = 0;   // what the wrong elements are worth
  double tried_ = 0;  // log2 of the hypotheses
  std::vector<Decoded> hits_;
};

}  // namespace

const char* name_of(WrongData kind) { return row_of(kind).name; }
const char* cause_of(WrongData kind) { return row_of(kind).cause; }
const char* action_of(WrongData kind) { return row_of(kind).action; }

std::vector<WrongData> all_wrong_data() {
  std::vector<WrongData> all;
  for (const Kind& row : kKinds) all.push_back(row.kind);
  return all;
}

std::string text_of(const Decoded& d) {
  const std::string age =
      d.age == 0 ? "" : fmt::format(" of {} iteration{} before", d.age, d.age == 1 ? "" : "s");
  const std::string rank = d.from_rank < 0 ? "one rank" : fmt::format("rank {}", d.from_rank);
  switch (d.kind) {
    case WrongData::stale: return "stale result" + age;
    case WrongData::torn: return fmt::format("torn in pieces of {} bytes", d.torn_bytes) + age;
    case WrongData::misrouted:
      if (d.from_rank < 0) return fmt::format("misrouted from {:+} bytes", d.from_offset);
      return d.from_offset == 0
                 ? fmt::format("misrouted from rank {}", d.from_rank)
                 : fmt::format("misrouted from rank {}, {:+} bytes", d.from_rank, d.from_offset);
    case WrongData::missing_addend: return "without the addend of " + rank;
    case WrongData::doubled_addend: return "with the addend of " + rank + " twice";
    case WrongData::stale_addend: return "with the addend of " + rank + age;
    case WrongData::unwritten: return "never written";
    case WrongData::bit_flip: return "one bit flipped";
    case WrongData::unknown: break;
  }
  return "of no known class";
}

std::optional<Decoded> decode(const Operands& operands, const Region& region) {
  return Decoder(operands, region).decode();
}

}  // namespace shakedown::operands
