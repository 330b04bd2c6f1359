// The data that collectives are proved with: exact whatever the order, and never the same twice.
#include "collectives/verifier.hpp"

#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "common/numbers.hpp"
#include "tests/catch.hpp"

namespace shakedown::collectives {
namespace {

using pattern::encode;
using pattern::Format;
using pattern::format_of;

bool is_float(DataType type) { return format_of(type).exponent > 0; }

double combine(Reduction op, double a, double b) {
  switch (op) {
    case Reduction::prod: return a * b;
    case Reduction::min: return std::min(a, b);
    case Reduction::max: return std::max(a, b);
    default: return a + b;
  }
}

/// As a transport does it: rounding after every step, in the order given.
std::uint64_t combined_in_order(const Pattern& p, std::uint64_t position,
                                const std::vector<int>& order) {
  const Format f = format_of(p.type);
  std::uint64_t all = input_bits(p, order[0], position);
  for (std::size_t i = 1; i < order.size(); ++i)
    all = encode(
        f, combine(p.reduction, decode(f, all), decode(f, input_bits(p, order[i], position))));
  return all;
}

}  // namespace

TEST_CASE("numbers are encoded as the hardware rounds them", "[pattern]") {
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

TEST_CASE("results do not depend on the order of ranks, nor on roundings between", "[pattern]") {
  for (DataType type : all_data_types()) {
    if (!is_float(type)) continue;
    for (Reduction op : {Reduction::sum, Reduction::prod, Reduction::min, Reduction::max}) {
      for (int ranks : {1, 2, 3, 8, 13, 64, 1000}) {
        const Pattern p{type, true, op, ranks, 77};
        std::vector<int> forwards(static_cast<std::size_t>(ranks));
        std::iota(forwards.begin(), forwards.end(), 0);
        std::vector<int> backwards(forwards.rbegin(), forwards.rend());
        int differ = 0;
        for (std::uint64_t i = 0; i < 200; ++i) {
          differ += combined_in_order(p, i, forwards) != combined_bits(p, i) ? 1 : 0;
          differ += combined_in_order(p, i, backwards) != combined_bits(p, i) ? 1 : 0;
          CHECK(std::isfinite(decode(format_of(type), combined_bits(p, i))));
        }
        CAPTURE(name_of(type), name_of(op), ranks);
        CHECK(differ == 0);
      }
    }
  }
}

TEST_CASE("an average is within two units, divided before or after the sum", "[pattern]") {
  for (DataType type : all_data_types()) {
    if (!is_float(type)) continue;
    const Format f = format_of(type);
    for (int ranks : {1, 2, 3, 7, 8, 24}) {
      const Pattern p{type, true, Reduction::avg, ranks, 5};
      int outside = 0;
      for (std::uint64_t i = 0; i < 300; ++i) {
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        for (int r = 0; r < ranks; ++r) {
          const double x = decode(f, input_bits(p, r, i));
          before = encode(f, decode(f, before) + decode(f, encode(f, x / ranks)));
          after = encode(f, decode(f, after) + x);
        }
        after = encode(f, decode(f, after) / ranks);
        outside += fits(p, combined_bits(p, i), before) ? 0 : 1;
        outside += fits(p, combined_bits(p, i), after) ? 0 : 1;
      }
      CAPTURE(name_of(type), ranks);
      CHECK(outside == 0);
    }
  }
}

TEST_CASE("averages fit within two units in the last place, all else to the bit", "[pattern]") {
  Pattern p{DataType::float32, true, Reduction::avg, 4, 0};
  CHECK(fits(p, 0x3F800000, 0x3F800002));
  CHECK_FALSE(fits(p, 0x3F800000, 0x3F800003));
  CHECK(fits(p, 0x00000001, 0x80000001));  // across zero
  p.reduction = Reduction::sum;
  CHECK_FALSE(fits(p, 0x3F800000, 0x3F800001));
  p = {DataType::int32, true, Reduction::avg, 4, 0};
  CHECK_FALSE(fits(p, 10, 11));
}

TEST_CASE("integers: sums stay in range, products are not zero", "[pattern]") {
  for (DataType type : {DataType::int8, DataType::uint8, DataType::int32, DataType::uint64}) {
    const Format f = format_of(type);
    for (int ranks : {2, 3, 8, 300}) {
      const Pattern sum{type, true, Reduction::sum, ranks, 3};
      const Pattern product{type, true, Reduction::prod, ranks, 3};
      for (std::uint64_t i = 0; i < 100; ++i) {
        double total = 0;
        for (int r = 0; r < ranks; ++r) total += static_cast<double>(input_bits(sum, r, i));
        CHECK(total <= std::ldexp(1.0, f.mantissa));
        CHECK(static_cast<double>(combined_bits(sum, i)) == Approx(total));
        CHECK(combined_bits(product, i) != 0);
      }
    }
  }
}

TEST_CASE("data differ by rank, by position and by iteration", "[pattern]") {
  for (bool combined : {false, true}) {
    const Pattern p{DataType::float32, combined, Reduction::sum, 4, 1};
    Pattern next = p;
    next.seed = 2;
    int same = 0;
    std::set<std::uint64_t> values;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      same += input_bits(p, 0, i) == input_bits(p, 1, i) ? 1 : 0;
      same += input_bits(p, 0, i) == input_bits(next, 0, i) ? 1 : 0;
      same += combined_bits(p, i) == combined_bits(next, i) ? 1 : 0;
      values.insert(input_bits(p, 0, i));
    }
    CHECK(same < 5);
    CHECK(values.size() > 990);
  }
}

}  // namespace shakedown::collectives
