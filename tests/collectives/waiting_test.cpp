#include "collectives/perf/bench.hpp"

#include <set>

#include "collectives/operations.hpp"
#include "collectives/verifier.hpp"
#include "tests/catch.hpp"

namespace shakedown::collectives {

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

TEST_CASE("a rank waits for the last where each receives from all", "[waiting]") {
  for (const Operation& operation : operations()) {
    std::set<int> sources;  // of what rank 1 of 3 receives, and of what rank 0 does
    bool from_all = true;
    for (int rank : {0, 1}) {
      sources.clear();
      for (const SourceRange& range : operation.expected(operation.counts(12, 3, 1), {rank, 3, 0}))
        sources.insert(range.source);
      from_all = from_all && (sources.size() == 3 || sources.contains(kAllRanks));
    }
    CAPTURE(operation.name);
    CHECK(operation.ends_together == from_all);
  }
}

}  // namespace shakedown::collectives
