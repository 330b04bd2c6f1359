// The logits of all ranks, put in order.
#include "common/error.hpp"
#include "training/programs/epochs.hpp"

#include "tests/catch.hpp"

namespace shakedown::training {

TEST_CASE("rows of several ranks are put in the order of the images", "[evaluation]") {
  // 5 images of 2 values on 2 ranks: images 0, 2, 4 and 1, 3 and a row of padding
  const std::vector<float> parts{0, 0.5, 2, 2.5, 4, 4.5, 1, 1.5, 3, 3.5, -1, -1};
  CHECK(interleaved(parts, 5, 2, 2) == std::vector<float>{0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5});
  CHECK(interleaved({1, 2, 3}, 3, 1, 1) == std::vector<float>{1, 2, 3});
  CHECK(interleaved({1, 2, 9}, 2, 1, 3) == std::vector<float>{1, 2});  // fewer images than ranks
  CHECK_THROWS_AS(interleaved({1, 2, 3}, 4, 1, 1), InternalError);
}

}  // namespace shakedown::training
