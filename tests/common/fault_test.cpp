#include "common/program.hpp"

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
  CHECK_THROWS_WITH(parse_fault("slow:1:3sms", kinds, 2),
                    ContainsSubstring("without an amount in this program"));
}

TEST_CASE("how slow a rank is made: SMs that are held, or idle time", "[fault]") {
  const std::vector<FaultKind> kinds{FaultKind::product, FaultKind::slow};
  const auto parsed = [&](const std::string& value) {
    return *parse_fault(value, kinds, 2, FaultAmount::of_slow);
  };
  CHECK(parsed("slow:1").held_sms == 0);
  CHECK(parsed("slow:1:3sms").held_sms == 3);
  CHECK(parsed("slow:1:2.5%").idle_share == Approx(0.025));
  CHECK(line_of(parsed("slow:1:3sms")) == "fault injected: slow on rank 1, 3 of its SMs held");
  CHECK(line_of(parsed("slow:0:5%")) == "fault injected: slow on rank 0, idle for 5 %");
  for (const char* wrong :
       {"slow:1:", "slow:1:3", "slow:1:0sms", "slow:1:5sms", "slow:1:2.5sms", "slow:1:0%",
        "slow:1:5x%", "slow:1:-5%", "slow:1:nan%", "product:1:5%", "slow:2:5%"})
    CHECK_THROWS_AS(parsed(wrong), UsageError);
}
