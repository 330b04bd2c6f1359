#include "training/predict/overlap.hpp"

#include "tests/catch.hpp"
#include "training/exchange/buckets.hpp"

namespace shakedown::training {
namespace {

using Ends = std::vector<std::size_t>;

}  // namespace

TEST_CASE("buckets start after one another and after their gradients", "[what_if]") {
  // 1 ms + 0.1 ms a byte: 2, 3 and 4 ms. The second waits for the first, the third for backward.
  const std::vector<ReadyBucket> buckets{{10, 2}, {20, 3}, {30, 9}};
  const Overlap overlap = overlap_buckets(buckets, 10, {1, 0.1});
  // 2..4, 4..7, 9..13
  CHECK(overlap.hidden_ms == Approx(6));
  CHECK(overlap.exposed_ms == Approx(3));
}

TEST_CASE("an exchange wholly hidden, wholly exposed, or none", "[what_if]") {
  const std::vector<ReadyBucket> early{{10, 2}};
  CHECK(overlap_buckets(early, 10, {1, 0.1}).exposed_ms == 0);
  const std::vector<ReadyBucket> late{{10, 10}, {0, 10}};  // an empty one is not sent
  CHECK(overlap_buckets(late, 10, {1, 0.1}).exposed_ms == Approx(2));
  CHECK(overlap_buckets(late, 10, {1, 0.1}).hidden_ms == 0);
  CHECK(overlap_buckets(late, 10, {0, 0}).exposed_ms == 0);
  CHECK(overlap_buckets({}, 10, {1, 0.1}).exposed_ms == 0);
}

TEST_CASE("weights gathered before each block", "[what_if]") {
  // In backward 4 ms and 6 ms, in forward half of that; gathers take 1 ms, scatters 2 ms.
  // Forward: gathers at 0..1, 1..2; blocks at 1..4, 4..6. Exposed: 1.
  // Backward: gathers at 0..1, 1..2; blocks at 1..5, 5..11; scatters at 5..7, 11..13. Exposed: 3.
  const std::vector<ReadyBucket> blocks{{10, 4}, {10, 10}};
  const Overlap overlap = overlap_gathered(blocks, 5, 10, {1, 0}, {2, 0});
  CHECK(overlap.exposed_ms == Approx(4));
  CHECK(overlap.hidden_ms == Approx(4));  // of 4 gathers and 2 scatters, 8 ms

  // 2 ms of backward after the last gradients hide the last scatter
  CHECK(overlap_gathered(blocks, 6, 12, {1, 0}, {2, 0}).exposed_ms == Approx(2));
  CHECK(overlap_gathered(blocks, 5, 10, {0, 0}, {0, 0}).exposed_ms == Approx(0).margin(1e-12));
  CHECK(overlap_gathered({}, 5, 10, {1, 0}, {2, 0}).exposed_ms == Approx(0).margin(1e-12));
}

TEST_CASE("PyTorch's rule over sizes", "[what_if]") {
  CHECK(capped_ends(std::vector<double>{4, 4, 4, 4, 4}, 5, 8) == Ends{2, 4, 5});
  CHECK(capped_ends(std::vector<double>{9, 4}, 5, 8) == Ends{1, 2});
  CHECK(capped_ends(std::vector<double>{0, 0}, 0, 0) == Ends{1, 2});
  CHECK(capped_ends(std::vector<double>{}, 5, 8).empty());
}

TEST_CASE("PyTorch's rule from the end: the small bucket is the last", "[what_if]") {
  const auto ends = [](std::vector<double> bytes) {
    return bucket_ends(bytes, 5, 8, SmallBucket::last);
  };
  CHECK(ends({4, 4, 4, 4, 4}) == Ends{1, 3, 5});     // {4} {4 4} {4 4}
  CHECK(ends({1, 2, 3, 9, 4, 6}) == Ends{3, 5, 6});  // {1 2 3} {9 4} {6}
  CHECK(ends({4, 9}) == Ends{1, 2});
  CHECK(ends({9, 4}) == Ends{2});  // 4 is not yet the small cap
  CHECK(ends({3}) == Ends{1});
  CHECK(ends({}).empty());
  CHECK(bucket_ends(std::vector<double>{0, 0}, 0, 0, SmallBucket::last) == Ends{1, 2});
  CHECK(bucket_ends(std::vector<double>{4, 4, 4}, 5, 8, SmallBucket::first) == Ends{2, 3});
}

TEST_CASE("gradients in buckets and blocks", "[what_if]") {
  const std::vector<ReadyGradient> gradients{{1, 1, 2}, {2, 3, 2}, {4, 2, 1}, {8, 5, 0}};
  const auto check = [](const std::vector<ReadyBucket>& buckets,
                        const std::vector<ReadyBucket>& expected) {
    REQUIRE(buckets.size() == expected.size());
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      CHECK(buckets[i].bytes == expected[i].bytes);
      CHECK(buckets[i].ready_ms == expected[i].ready_ms);
    }
  };
  check(in_blocks(gradients), {{3, 3}, {4, 2}, {8, 5}});  // the slowest, not the last
  check(in_buckets(gradients, 4, 100, SmallBucket::first), {{7, 3}, {8, 5}});
  check(in_buckets(gradients, 1, 4, SmallBucket::first), {{1, 1}, {6, 3}, {8, 5}});
  check(in_buckets(gradients, 8, 100, SmallBucket::last), {{7, 3}, {8, 5}});
  check(in_blocks({}), {});
  check(in_buckets({}, 4, 100, SmallBucket::first), {});
}

}  // namespace shakedown::training
