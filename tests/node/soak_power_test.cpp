// What a soak would have found, from its counts: against faults that are drawn one by one.
#include "launch/node/soak/power.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "common/numbers.hpp"
#include "common/nvml.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

using enum ProductType;

/// Two minutes of one H200 by the design's schedule.
Checked two_minutes() {
  Checked checked;
  checked.products = {{fp64, {630, 286, 8192. * 8192}},
                      {bf16, {8400, 400, 8192. * 8192}},
                      {fp8, {24000, 400, 8192. * 8192}}};
  checked.processors = 132;
  checked.lanes = kLanes;
  checked.probes = 63500;
  checked.memory_share = 0.971;
  checked.memory_passes = 1.28;
  checked.copied_words = 2.77e10;
  return checked;
}

/// Share of 4,000 faults of which one in `count` trials of probability p or more is wrong. Each has
/// bits of its own.
double found(double count, double p, std::uint64_t seed) {
  constexpr int kFaults = 4000;
  int found = 0;
  for (int fault = 0; fault < kFaults; ++fault) {
    const std::uint64_t of_fault = number_format::hash(seed, static_cast<std::uint64_t>(fault));
    for (std::uint64_t trial = 0; trial < static_cast<std::uint64_t>(count); ++trial)
      if (static_cast<double>(number_format::hash(of_fault, trial)) < p * 0x1p64) {
        ++found;
        break;
      }
  }
  return static_cast<double>(found) / kFaults;
}

}  // namespace

TEST_CASE("95 of 100 faults at the stated power are found", "[soak][power]") {
  Checked checked;
  checked.processors = 4;
  checked.lanes = 32;
  checked.products = {{bf16, {900, 100, 16384}}, {fp8, {700, 60, 16384}}};
  checked.probes = 1300;
  const Power power = power_of(checked);
  const auto near = [](double share) { return share > 0.943 && share < 0.957; };
  // A lane's elements in all turns of the type with the fewest; the operands of each excite others.
  CHECK(near(found(60 * 16384. / 4 / 32, 1 / power.lane_elements, 1)));
  CHECK(power.processor_elements == Approx(32 * power.lane_elements));
  CHECK(near(found(1600, 1 / power.products, 2)));
  CHECK(near(found(700, 1 / power.products_of.at(fp8), 3)));
  CHECK(near(found(1300, 1 / power.probes, 4)));
  // Ten times rarer ones, by the same formula.
  CHECK(std::abs(found(1600, 0.1 / power.products, 5) - (1 - std::exp(-0.3))) < 0.015);
}

TEST_CASE("of two GPUs the one that checked less counts, quantity by quantity", "[soak][power]") {
  const Power before = power_of(two_minutes());
  Checked other = two_minutes();
  other.products[fp64].turns = 100;
  other.products[bf16].turns = 0;
  other.probes *= 2;
  const Power least = least_of({before, power_of(other)});
  CHECK(least.probes == before.probes);
  CHECK(least.lane_elements == power_of(other).lane_elements);
  CHECK(least.unmoved_types == std::vector{bf16});
}

TEST_CASE("the record has the power of each type, and of lanes where they are known", "[power]") {
  Checked few;
  few.products = {{fp32, {40, 0, 65536}}, {int8, {0, 0, 65536}}};
  const Json record = record_of(power_of(few));
  CHECK(record.at("one_in.products.fp32") == Approx(40. / 3));
  CHECK(record.at("one_in.products.int8") == 0);
  CHECK_FALSE(record.contains("one_in.lane_elements"));
}

}  // namespace shakedown::node
