#include "resnet/memory_plan.hpp"
#include "common/error.hpp"

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {

TEST_CASE("slots that live together never share a byte", "[plan]") {
  Random random(GENERATE(range(1, 20)));
  MemoryPlan plan;
  struct Life {
    const Slot* slot;
    int first, last;
  };
  std::vector<Life> lives;
  for (int i = 0; i < 120; ++i) {
    const int first = static_cast<int>(random.below(60));
    const int last = first + static_cast<int>(random.below(20));
    lives.push_back({plan.reserve("slot", random.below(100000), first, last), first, last});
  }
  plan.place();
  std::vector<std::byte> memory(plan.bytes() + MemoryPlan::kAlignment);
  plan.bind(memory.data());
  for (const Life& a : lives) {
    const auto* begin = static_cast<const std::byte*>(a.slot->data());
    REQUIRE((begin - memory.data()) % static_cast<std::ptrdiff_t>(MemoryPlan::kAlignment) == 0);
    REQUIRE(begin + a.slot->bytes() <= memory.data() + plan.bytes());
    for (const Life& b : lives) {
      if (a.slot == b.slot || a.last < b.first || b.last < a.first) continue;
      const auto* other = static_cast<const std::byte*>(b.slot->data());
      const bool disjoint = begin + a.slot->bytes() <= other || other + b.slot->bytes() <= begin;
      REQUIRE(disjoint);
    }
  }
  CHECK(plan.bytes() >= plan.lower_bound());
  CHECK(static_cast<double>(plan.bytes()) < 1.5 * static_cast<double>(plan.lower_bound()));
}

TEST_CASE("slots of different moments share bytes", "[plan]") {
  MemoryPlan plan;
  for (int i = 0; i < 10; ++i) plan.reserve("scratch", 1024, i, i);
  const Slot* always = plan.reserve("always", 2048, 0, 9);
  plan.place();
  CHECK(plan.bytes() == 3072);
  CHECK(plan.lower_bound() == 3072);
  CHECK(always->data() == nullptr);
  CHECK_THROWS_AS(plan.reserve("backwards", 1, 3, 2), InternalError);
}

}  // namespace shakedown
