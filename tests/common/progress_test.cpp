// The progress line: rate, and what is left of this work and of the run.
#include "common/text_table.hpp"

#include "tests/catch.hpp"

namespace shakedown {

TEST_CASE("progress: what is left, of this work and of the run", "[progress]") {
  const auto text = [](long done, Following following) {
    return text_of_progress("epoch 2/4", done, 100, "steps", 20, following);
  };
  CHECK(text(40, {}) == "epoch 2/4: 40/100 steps, 2/s, 0:30 left");
  // two more epochs of 50 s, as this one is expected to take; or of 100 s, as the first took
  CHECK(text(40, {2, 0}) == "epoch 2/4: 40/100 steps, 2/s, 0:30 left, 2:10 to the end of the run");
  CHECK(text(40, {2, 100}) ==
        "epoch 2/4: 40/100 steps, 2/s, 0:30 left, 3:50 to the end of the run");
  CHECK(text(100, {2, 100}) == "epoch 2/4: 100/100 steps, 5/s, 3:20 to the end of the run");
  CHECK(text(0, {2, 0}) == "epoch 2/4: 0/100 steps, 0/s");
}

}  // namespace shakedown
