// Operands are exact in any order, differ by rank, iteration and position, and are known in O(1).
#include "common/operands/operands.hpp"

#include <cmath>
#include <vector>

#include "common/hash.hpp"
#include "tests/catch.hpp"
#include "tests/support/injected_data.hpp"

namespace shakedown::operands {
namespace {

using number_format::encode;
using number_format::Format;
using number_format::format_of;

constexpr Reduction kExact[] = {Reduction::sum, Reduction::prod, Reduction::min, Reduction::max};

bool is_float(DataType type) { return format_of(type).exponent > 0; }

/// All ranks' elements, combined in a chain, a tree and a random order.
std::vector<std::uint64_t> in_orders(const Operands& o, std::uint64_t position, Random& random) {
  std::vector<std::uint64_t> inputs;
  for (int r = 0; r < o.ranks; ++r) inputs.push_back(input_bits(o, r, position));
  std::vector<std::uint64_t> results;
  for (int order = 0; order < 3; ++order) {
    std::vector<std::uint64_t> work = inputs;
    while (work.size() > 1) {
      if (order == 2) std::swap(work[random.below(work.size())], work.back());
      const std::uint64_t last = work.back();
      work.pop_back();
      if (order == 2) std::swap(work[random.below(work.size())], work.back());
      std::uint64_t& into = order == 1 ? work[work.size() / 2] : work.back();
      into = collectives::combined_in_type(o.type, o.reduction, into, last);
    }
    results.push_back(work[0]);
  }
  return results;
}

}  // namespace

TEST_CASE("numbers are encoded as the hardware rounds them", "[operands]") {
  for (double x : {0.0, 1.0, -1.5, 3.14159, 1e-5, -6e-8, 65504.0, 1.0 + 0x1p-11, 1.0 + 0x1.8p-10}) {
    CAPTURE(x);
    const auto single = static_cast<float>(x);
    CHECK(encode(format_of(DataType::float32), x) == std::bit_cast<std::uint32_t>(single));
    CHECK(encode(format_of(DataType::float64), x) == std::bit_cast<std::uint64_t>(x));
    CHECK(encode(format_of(DataType::float16), single) == float_to_float16(single));
    CHECK(encode(format_of(DataType::bfloat16), single) == float_to_bfloat16(single));
  }
  // OCP 8-bit floating point, tables 1 and 2
  CHECK(encode(format_of(DataType::float8_e4m3), 448) == 0x7E);
  CHECK(encode(format_of(DataType::float8_e4m3), -0x1p-9) == 0x81);
  CHECK(encode(format_of(DataType::float8_e5m2), 57344) == 0x7B);
  CHECK(encode(format_of(DataType::float8_e5m2), 0x1p-16) == 0x01);
}

TEST_CASE("results are exact in any order of ranks, rounded at each step", "[operands]") {
  Random random(1);
  for (DataType type : all_data_types()) {
    for (int ranks : {1, 2, 3, 5, 8, 13, 64, 257, 1000, 4096}) {
      const std::uint64_t elements = ranks > 1000 ? 4 : ranks > 64 ? 16 : 64;
      for (Reduction op : kExact) {
        const Operands o = make_operands(type, true, op, ranks, 77, 5);
        int differ = 0;
        for (std::uint64_t i = 0; i < elements; ++i) {
          const std::uint64_t position = 31 * i + 5;
          const std::uint64_t expected = combined_bits(o, position);
          for (const std::uint64_t result : in_orders(o, position, random))
            differ += result != expected ? 1 : 0;
          if (is_float(type))
            CHECK(std::isfinite(number_format::decode(format_of(type), expected)));
        }
        CAPTURE(name_of(type), name_of(op), ranks);
        CHECK(differ == 0);
      }
    }
  }
}

TEST_CASE("sums of integers never leave the type's range", "[operands]") {
  Random random(2);
  for (DataType type : all_data_types()) {
    if (is_float(type)) continue;
    const Format format = format_of(type);
    for (int ranks : {2, 3, 8, 254, 510, 1024}) {
      const Operands o = make_operands(type, true, Reduction::sum, ranks, 3);
      double most = 0;
      double least = 0;
      for (std::uint64_t i = 0; i < 64; ++i) {
        double up = 0;
        double down = 0;
        for (int r = 0; r < ranks; ++r) {
          const double x = number_format::decode(format, input_bits(o, r, i));
          (x > 0 ? up : down) += x;
        }
        most = std::max(most, up);
        least = std::min(least, down);
      }
      CAPTURE(name_of(type), ranks);
      CHECK(most < std::ldexp(1.0, format.is_signed ? format.width - 1 : format.width));
      CHECK(least > -std::ldexp(1.0, format.is_signed ? format.width - 1 : 0));
    }
  }
}

TEST_CASE("no addend is 0, or every block shows every rank", "[operands]") {
  for (DataType type : all_data_types())
    for (int ranks : {1, 2, 8, 64, 254, 510, 1024, 4096}) {
      const Operands o = make_operands(type, true, Reduction::sum, ranks, 9, 4);
      const std::uint64_t block = o.layout.dense ? 1 : std::uint64_t{1} << o.layout.block_bits;
      int unseen = 0;
      for (int r = 0; r < ranks; r += std::max(1, ranks / 64))
        for (std::uint64_t first = 0; first < 4 * block; first += block) {
          int shares = 0;
          for (std::uint64_t i = first; i < first + block; ++i)
            if (detail::share(o.layout, detail::hashes_at(o, i), i,
                              static_cast<std::uint32_t>(r)) != 0)
              ++shares;
          unseen += shares < (o.layout.dense ? 1 : 2) ? 1 : 0;
        }
      CAPTURE(name_of(type), ranks, o.layout.dense);
      CHECK(unseen == 0);
    }
}

TEST_CASE("no result is a constant, above a type's budget neither", "[operands]") {
  for (DataType type : all_data_types())
    for (Reduction op : all_reductions())
      for (int ranks : {2, 8, 64, 254, 256, 510, 1024, 4096}) {
        const Operands o = make_operands(type, true, op, ranks, 1, 40);
        if (!checkable(o)) continue;
        const Operands next = at_iteration(o, 41);
        int stale = 0;
        int moved = 0;
        constexpr int kElements = 1000;
        for (std::uint64_t i = 0; i < kElements; ++i) {
          stale += combined_bits(o, i) == combined_bits(next, i) ? 1 : 0;
          moved += combined_bits(o, i) == combined_bits(o, i + 16) ? 1 : 0;
        }
        // the chance of two results that are equal, and five times its spread
        const double chance = std::exp2(-log2_values(o, kAllRanks)) * 2.5;
        const double most = kElements * chance + 5 * std::sqrt(kElements * chance) + 5;
        CAPTURE(name_of(type), name_of(op), ranks, chance);
        CHECK(stale < most);
        CHECK(moved < most);
        CHECK(stale < kElements / 2);
      }
}

TEST_CASE("an average is within two units, divided before or after the sum", "[operands]") {
  for (DataType type : all_data_types()) {
    if (!is_float(type)) continue;
    const Format f = format_of(type);
    for (int ranks : {1, 2, 3, 7, 8, 24, 64, 512}) {
      const Operands o = make_operands(type, true, Reduction::avg, ranks, 5);
      if (!checkable(o)) continue;
      int outside = 0;
      int rounded = 0;
      for (std::uint64_t i = 0; i < 300; ++i) {
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        for (int r = 0; r < ranks; ++r) {
          const double x = decode(f, input_bits(o, r, i));
          before = encode(f, decode(f, before) + decode(f, encode(f, x / ranks)));
          after = encode(f, decode(f, after) + x);
        }
        after = encode(f, decode(f, after) / ranks);
        const std::uint64_t expected = combined_bits(o, i);
        outside += fits(o, expected, before) && fits(o, expected, after) ? 0 : 1;
        rounded += before != expected || after != expected ? 1 : 0;
      }
      CAPTURE(name_of(type), ranks);
      CHECK(outside == 0);
      if (!o.paired) CHECK(rounded == 0);
    }
  }
}

TEST_CASE("averages of integers are the sum's, towards zero", "[operands]") {
  for (DataType type : {DataType::int8, DataType::uint8, DataType::int32, DataType::int64}) {
    const Format format = format_of(type);
    for (int ranks : {2, 3, 8, 100}) {
      const Operands o = make_operands(type, true, Reduction::avg, ranks, 5);
      for (std::uint64_t i = 0; i < 50; ++i) {
        std::int64_t sum = 0;
        for (int r = 0; r < ranks; ++r) {
          const std::uint64_t x = input_bits(o, r, i);
          sum += format.is_signed ? sign_extended(format, x) : static_cast<std::int64_t>(x);
        }
        CHECK(combined_bits(o, i) ==
              number_format::low_bits(static_cast<std::uint64_t>(sum / ranks), format.width));
      }
    }
  }
}

TEST_CASE("averages that no transport agrees on are not checked", "[operands]") {
  const auto checked = [](DataType type, int ranks) {
    return checkable(make_operands(type, true, Reduction::avg, ranks));
  };
  CHECK(checked(DataType::float8_e4m3, 8));
  CHECK(checked(DataType::float8_e4m3, 512));
  CHECK_FALSE(checked(DataType::float8_e4m3, 600));   // 17 % off in NCCL
  CHECK_FALSE(checked(DataType::float8_e4m3, 1024));  // 0 in NCCL
  CHECK(checked(DataType::float8_e5m2, 600));
  CHECK(checked(DataType::int8, 31));
  CHECK_FALSE(checked(DataType::int8, 64));  // 0 in 97 of 100 elements
  CHECK(checked(DataType::float32, 4096));
}

TEST_CASE("averages fit within two units in the last place, all else to the bit", "[operands]") {
  Operands o = make_operands(DataType::float32, true, Reduction::avg, 3);
  CHECK(fits(o, 0x3F800000, 0x3F800002));
  CHECK_FALSE(fits(o, 0x3F800000, 0x3F800003));
  CHECK(fits(o, 0x00000001, 0x80000001));  // across zero
  o = make_operands(DataType::float32, true, Reduction::avg, 4);
  CHECK_FALSE(fits(o, 0x3F800000, 0x3F800001));
  o = make_operands(DataType::float32, true, Reduction::sum, 3);
  CHECK_FALSE(fits(o, 0x3F800000, 0x3F800001));
  o = make_operands(DataType::int32, true, Reduction::avg, 3);
  CHECK_FALSE(fits(o, 10, 11));
}

}  // namespace shakedown::operands
