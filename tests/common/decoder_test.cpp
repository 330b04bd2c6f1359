// Wrong results are named: each class in every type and operation, and nothing that is right or of
// no class.
#include "common/operands/decoder.hpp"

#include <bit>
#include <iterator>
#include <map>
#include <vector>

#include "common/hash.hpp"
#include "common/operands/addends.hpp"
#include "tests/catch.hpp"
#include "tests/support/injected_data.hpp"

namespace shakedown::operands {
namespace {

using collectives::applies;
using collectives::Damage;

constexpr std::uint64_t kIteration = 40;

Region right_region(const Operands& o, int source, std::uint64_t position, std::size_t bytes) {
  Region region;
  region.source = source;
  region.position = position;
  for (std::size_t i = 0; i < bytes / size_of(o.type); ++i)
    region.found.push_back(expected_bits(o, source, position + i));
  region.extent = position + region.found.size() + 4096 / size_of(o.type);
  return region;
}

bool is_addend(WrongData kind) {
  return kind == WrongData::missing_addend || kind == WrongData::doubled_addend ||
         kind == WrongData::stale_addend;
}

/// As apply() leaves it, by the closed form where all ranks' inputs would take long.
void injure(const Damage& damage, const Operands& o, Region& region, Random& random) {
  const std::size_t count = region.found.size();
  if (damage.kind == WrongData::bit_flip) return apply(damage, o, random.below(count), 1, region);
  if (o.ranks <= 8 || region.source != kAllRanks || damage.kind == WrongData::unwritten)
    return apply(damage, o, 0, count, region);
  const std::size_t size = size_of(o.type);
  const Operands then = at_iteration(o, o.iteration - static_cast<std::uint64_t>(damage.age));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = region.position + i;
    if (is_addend(damage.kind))
      region.found[i] = with_addend(o, damage.kind, damage.rank, at, then, at);
    else if (damage.kind == WrongData::misrouted)
      region.found[i] =
          combined_bits(o, at + static_cast<std::uint64_t>(damage.offset_bytes) / size);
    else if (damage.kind == WrongData::stale || i * size % 128 >= 128 - damage.torn_bytes)
      region.found[i] = combined_bits(then, at);
  }
}

struct Tally {
  int seen = 0;
  int right = 0;    // of the class, with its rank, offset, age and size
  int unknown = 0;  // the rest are of another class
};

/// `count` injections of one class, at places of the same seed.
void inject(const Operands& o, int source, WrongData kind, int count, std::uint64_t seed,
            Tally& tally) {
  Random random(seed);
  for (int i = 0; i < count; ++i) {
    Damage damage{.kind = kind};
    damage.rank = static_cast<int>(random.below(static_cast<std::size_t>(o.ranks)));
    if (damage.rank == source) damage.rank = (source + 1) % o.ranks;
    damage.age = is_addend(kind) ? 1 : 1 + static_cast<int>(random.below(3));
    damage.torn_bytes = std::size_t{16} << random.below(3);
    damage.offset_bytes = std::int64_t{16} << random.below(8);
    damage.bit = static_cast<int>(random.below(64));
    if (!applies(damage, o)) return;
    Region region =
        right_region(o, source, random.below(1 << 20) * 512 / size_of(o.type), decodable_bytes(o));
    const std::vector<std::uint64_t> right = region.found;
    injure(damage, o, region, random);
    const auto decoded = decode(o, region);
    REQUIRE(decoded.has_value() == (region.found != right));
    if (!decoded) continue;
    ++tally.seen;
    const bool whose = decoded->from_rank == damage.rank || !is_addend(kind);
    const bool when =
        decoded->age == damage.age || (kind != WrongData::stale && kind != WrongData::torn);
    const bool size =
        kind != WrongData::torn || decoded->torn_bytes == static_cast<int>(damage.torn_bytes);
    const bool where = kind != WrongData::misrouted || decoded->from_rank == damage.rank ||
                       decoded->from_offset == damage.offset_bytes;
    if (decoded->kind == kind && whose && when && size && where) ++tally.right;
    if (decoded->kind == WrongData::unknown) ++tally.unknown;
    if (decoded->kind != WrongData::unknown && decoded->kind != WrongData::bit_flip)
      CHECK(decoded->chance_log2 <= -20);
  }
}

/// Of 100, how many are named. One addend too many or an old one leaves what is exact in floating
/// types: the order of additions decides bits. In 8 bits too few are left, and products may leave
/// the type's range on the way.
int fewest_named(const Operands& o, WrongData kind) {
  const bool rounds = o.combined && o.ranks > 2 && number_format::format_of(o.type).exponent > 0 &&
                      o.reduction != Reduction::min && o.reduction != Reduction::max &&
                      (kind == WrongData::doubled_addend || kind == WrongData::stale_addend);
  if (!rounds) return 99;
  return is_float8(o.type) ? 0 : o.reduction == Reduction::prod ? 80 : 99;
}

void check_named(const Operands& o, int source, int count) {
  for (const WrongData kind : all_wrong_data()) {
    if (kind == WrongData::unknown) continue;
    Tally tally;
    inject(o, source, kind, count, 7 + static_cast<std::uint64_t>(o.ranks), tally);
    CAPTURE(name_of(o.type), o.ranks, o.combined ? name_of(o.reduction) : "moved", name_of(kind),
            tally.seen, tally.right, tally.unknown);
    CHECK(tally.right + tally.unknown == tally.seen);  // none of another class
    CHECK(tally.right * 100 >= tally.seen * fewest_named(o, kind));
  }
}

}  // namespace

TEST_CASE("each class is named in sums of every type, over 2 to 4,096 ranks", "[decoder]") {
  for (DataType type : all_data_types())
    for (const auto& [ranks, count] :
         std::map<int, int>{{2, 12}, {3, 6}, {8, 12}, {64, 4}, {1024, 1}, {4096, 1}})
      check_named(make_operands(type, true, Reduction::sum, ranks, 7, kIteration), kAllRanks,
                  count);
}

TEST_CASE("each class is named in the other operations", "[decoder]") {
  for (DataType type : all_data_types()) {
    for (Reduction op : {Reduction::prod, Reduction::min, Reduction::max, Reduction::avg}) {
      if (op == Reduction::min && type == DataType::float8_e5m2) continue;  // 2 bits: 98 in 100
      if (op == Reduction::max && type == DataType::float8_e5m2) continue;
      check_named(make_operands(type, true, op, 8, 7, kIteration), kAllRanks, 5);
    }
    check_named(make_operands(type, false, Reduction::sum, 64, 7, kIteration), 5, 10);
  }
}

TEST_CASE("10,000 right results: none is blamed", "[decoder]") {
  Random random(5);
  const auto types = all_data_types();
  const auto reductions = all_reductions();
  const int ranks[] = {1, 2, 3, 8, 64, 1024, 4096};
  int blamed = 0;
  for (int run = 0; run < 10000; ++run) {
    const auto number = static_cast<std::size_t>(run);
    const bool moved = run % 6 == 5;
    const Operands o =
        make_operands(types[number % types.size()], !moved, reductions[number / 12 % 5],
                      ranks[number / 60 % std::size(ranks)], 3, random.below(1000));
    blamed +=
        decode(o, right_region(o, moved ? 0 : kAllRanks, random.below(1 << 20), 128)).has_value()
            ? 1
            : 0;
  }
  CHECK(blamed == 0);
}

TEST_CASE("data of no class are unknown", "[decoder]") {
  Random random(6);
  for (DataType type : all_data_types())
    for (int ranks : {2, 8, 64}) {
      const Operands o = make_operands(type, true, Reduction::sum, ranks, 9, kIteration);
      for (int run = 0; run < 20; ++run) {
        Region region = right_region(o, kAllRanks, random.below(1 << 20), decodable_bytes(o));
        for (std::uint64_t& x : region.found)  // another sum of the same range and scale
          x = combined_bits(at_iteration(o, random.next()), random.below(1 << 20));
        const auto decoded = decode(o, region);
        CAPTURE(name_of(type), ranks, run);
        REQUIRE(decoded);
        CHECK(decoded->kind == WrongData::unknown);
      }
    }
}

TEST_CASE("an operation in place that did nothing is never written", "[decoder]") {
  const Operands o = make_operands(DataType::float32, true, Reduction::sum, 8, 1, kIteration);
  Region region = right_region(o, kAllRanks, 4096, 512);
  for (std::size_t i = 0; i < region.found.size(); ++i)
    region.before.push_back(input_bits(o, 3, region.position + i));
  region.found = region.before;
  CHECK(decode(o, region)->kind == WrongData::unwritten);
  CHECK(decode(o, region)->chance_log2 < -1000);
}

TEST_CASE("too little is not named: one element of few values", "[decoder]") {
  const Operands o = make_operands(DataType::float8_e5m2, true, Reduction::sum, 8, 1, kIteration);
  Region region = right_region(o, kAllRanks, 0, 512);
  const Operands then = at_iteration(o, kIteration - 1);
  std::size_t i = 0;
  while (std::popcount(combined_bits(then, i) ^ region.found[i]) < 2) ++i;
  region.found[i] = combined_bits(then, i);
  CHECK(decode(o, region)->kind == WrongData::unknown);
}

// As LL128 or GPU-direct without ordering: the flag of a 128-byte line is seen before its data.
TEST_CASE("some lines whose flag overtook their data are torn", "[decoder]") {
  constexpr std::size_t kLine = 128 / sizeof(std::uint32_t);
  const Operands o = make_operands(DataType::float32, true, Reduction::sum, 8, 1, kIteration);
  const Operands before = at_iteration(o, kIteration - 1);
  Region region = right_region(o, kAllRanks, 0, 32 * 128);
  for (std::size_t i = 0; i < region.found.size(); ++i)
    if (i / kLine % 3 == 1 && i % kLine >= kLine / 2) region.found[i] = combined_bits(before, i);
  const auto decoded = decode(o, region);
  REQUIRE(decoded);
  CHECK(decoded->kind == WrongData::torn);
  CHECK(decoded->torn_bytes == 64);
  CHECK(decoded->age == 1);
}

TEST_CASE("the closed form of a wrong addend is what the ranks' inputs add up to", "[decoder]") {
  Random random(8);
  for (DataType type : all_data_types())
    for (Reduction op : all_reductions())
      for (int ranks : {1, 2, 3, 8, 64}) {
        const Operands o = make_operands(type, true, op, ranks, 2, kIteration);
        if (!checkable(o)) continue;
        const Operands then = at_iteration(o, kIteration - 1);
        for (const WrongData kind : {WrongData::missing_addend, WrongData::stale_addend}) {
          if (ranks == 1 && kind == WrongData::missing_addend) continue;
          Damage damage{.kind = kind};
          damage.rank = static_cast<int>(random.below(static_cast<std::size_t>(ranks)));
          Region region = right_region(o, kAllRanks, random.below(1 << 20), 32);
          apply(damage, o, 0, region.found.size(), region);
          int differ = 0;
          for (std::size_t i = 0; i < region.found.size(); ++i) {
            const std::uint64_t at = region.position + i;
            differ +=
                fits(o, with_addend(o, kind, damage.rank, at, then, at), region.found[i]) ? 0 : 1;
          }
          CAPTURE(name_of(type), name_of(op), ranks, name_of(kind));
          if (kind == WrongData::missing_addend) CHECK(differ == 0);
          // the earlier addend is of another scale: it may round otherwise on the way
          if (number_format::format_of(type).exponent == 0) CHECK(differ == 0);
        }
      }
}

}  // namespace shakedown::operands
