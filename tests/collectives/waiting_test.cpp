#include "collectives/waiting.hpp"

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("the rank that everybody waited for is named", "[waiting]") {
  // rank 2 enters 500 us late in each of three iterations of 100 us
  const WaitingTimes waiting = analyse_waiting({{600, 605, 590}, {598, 600, 595}, {100, 102, 98}});
  CHECK(waiting.straggler == 2);
  CHECK(waiting.transfer_us == 100);
  CHECK(waiting.wait_us[2] == 0);
  CHECK(waiting.wait_us[0] == 500);
  CHECK(waiting.wait_for_straggler_us == 500);
}

TEST_CASE("waiting that is noise names nobody", "[waiting]") {
  CHECK(analyse_waiting({{100, 101, 102}, {101, 100, 103}}).straggler == -1);
  CHECK(analyse_waiting({{12, 14}, {10, 11}}).straggler == -1);      // 20 % of 10 us
  CHECK(analyse_waiting({{100, 900}, {900, 100}}).straggler == -1);  // each in turn
  CHECK(analyse_waiting({{50, 60, 70}}).straggler == -1);            // alone
}

}  // namespace shakedown
