#include "common/fault.hpp"

#include "common/error.hpp"
#include "tests/catch.hpp"

using namespace shakedown;

TEST_CASE("a fault is a kind that the program knows and a rank that there is", "[fault]") {
  const std::vector<FaultKind> kinds{FaultKind::product, FaultKind::slow};
  CHECK_FALSE(parse_fault("", kinds, 2).has_value());
  const auto fault = parse_fault("slow:1", kinds, 2);
  REQUIRE(fault.has_value());
  CHECK(fault->kind == FaultKind::slow);
  CHECK(fault->rank == 1);
  CHECK(line_of(*fault) == "fault injected: slow on rank 1");
  for (const char* wrong : {"slow", "slow:", "slow:2", "slow:-1", "slow:1x", "memory:0", "1:slow"})
    CHECK_THROWS_AS(parse_fault(wrong, kinds, 2), UsageError);
}
