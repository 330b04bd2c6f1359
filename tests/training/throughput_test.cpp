#include "training/measure/throughput.hpp"

#include "common/error.hpp"
#include "common/nvml.hpp"
#include "tests/catch.hpp"
#include "training/programs/describe.hpp"

namespace shakedown::training {

TEST_CASE("NVLink's counters are believed where every rank's can be read and moved",
          "[throughput]") {
  CHECK(nvlink_counts_all({101, 102}, {100, 100}));
  CHECK(nvlink_counts_all({0, 0}, {0, 0}));      // none exchanges nothing
  CHECK(nvlink_counts_all({3, 100}, {0, 100}));  // a rank that only receives acknowledges
  CHECK_FALSE(nvlink_counts_all({101}, {100}));  // of one rank alone
  CHECK_FALSE(nvlink_counts_all({101, kUnknown}, {100, 100}));
  CHECK_FALSE(nvlink_counts_all({101, 0}, {100, 100}));  // by PCIe or the host
}

TEST_CASE("a loss that is no number, or no step that trained, fails", "[throughput]") {
  const auto step = [](double loss, int skipped) {
    Throughput measured;
    measured.loss_first = 7;
    measured.loss_last = loss;
    measured.iterations = 4;
    measured.skipped_timed_steps = skipped;
    return measured;
  };
  CHECK_NOTHROW(check_trained(step(6, 3)));
  CHECK_THROWS_AS(check_trained(step(6, 4)), FailError);
  CHECK_THROWS_AS(check_trained(step(NAN, 0)), FailError);
}

TEST_CASE("warm-up goes on until its time is over", "[throughput]") {
  CHECK(steps_to_fill(2, 2, 10) == 0);
  CHECK(steps_to_fill(0, 0.1, 10) == 0);
  CHECK(steps_to_fill(2, 0.5, 10) == 30);
  CHECK(steps_to_fill(2, 1.99, 10) == 1);
  CHECK(steps_to_fill(2, 0, 0) == 1);  // nothing is known of a step's time
}

TEST_CASE("ranks are counted with their nodes", "[throughput]") {
  CHECK(text_of_ranks({"a"}) == "1 rank on 1 node (a)");
  CHECK(text_of_ranks({"b", "b", "a"}) == "3 ranks on 2 nodes (b, a)");
  std::vector<std::string> many;
  for (int i = 0; i < 20; ++i) many.push_back("n" + std::to_string(i));
  CHECK_THAT(text_of_ranks(many),
             ContainsSubstring("20 nodes (n0, ") && ContainsSubstring("n7 and 12 more)"));
}

}  // namespace shakedown::training
