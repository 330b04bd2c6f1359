#include "training/predict/bucket_plan.hpp"

#include <algorithm>

#include "common/error.hpp"
#include "common/random.hpp"
#include "tests/catch.hpp"
#include "training/exchange/buckets.hpp"

namespace shakedown::training {
namespace {

using Ends = std::vector<std::size_t>;

/// Gradients of up to 10 MB that become ready one after the other, the last at `backward_ms`.
std::vector<ReadyGradient> random_gradients(Random& random, std::size_t count, double backward_ms) {
  std::vector<ReadyGradient> gradients;
  for (std::size_t i = 0; i < count; ++i) {
    gradients.push_back({1e7 * random.uniform(), backward_ms * random.uniform(), 0});
  }
  std::sort(gradients.begin(), gradients.end(),
            [](const auto& a, const auto& b) { return a.ready_ms < b.ready_ms; });
  gradients.back().ready_ms = backward_ms;
  return gradients;
}

/// The earliest end over all 2^(n-1) partitions.
double least_exposed_ms(const std::vector<ReadyGradient>& gradients, double backward_ms,
                        const ExchangeTime& time) {
  double least = 1e300;
  for (std::size_t cuts = 0; cuts < std::size_t{1} << (gradients.size() - 1); ++cuts) {
    Ends ends;
    for (std::size_t i = 0; i + 1 < gradients.size(); ++i) {
      if (cuts >> i & 1) ends.push_back(i + 1);
    }
    ends.push_back(gradients.size());
    least = std::min(least, overlap_buckets(group(gradients, ends), backward_ms, time).exposed_ms);
  }
  return least;
}

}  // namespace

TEST_CASE("buckets queue behind one another and behind their gradients", "[what_if]") {
  // 1 ms + 0.1 ms a byte: 2, 3 and 4 ms. The second waits for the first, the third for backward.
  const std::vector<ReadyBucket> buckets{{10, 2}, {20, 3}, {30, 9}};
  const Overlap overlap = overlap_buckets(buckets, 10, {1, 0.1});
  const double expected[3][4] = {{2, 4, 2, 0}, {4, 7, 3, 0}, {9, 13, 1, 3}};
  REQUIRE(overlap.buckets.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(overlap.buckets[i].start_ms == Approx(expected[i][0]));
    CHECK(overlap.buckets[i].end_ms == Approx(expected[i][1]));
    CHECK(overlap.buckets[i].hidden_ms == Approx(expected[i][2]));
    CHECK(overlap.buckets[i].exposed_ms == Approx(expected[i][3]).margin(1e-12));
  }
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
  CHECK(block_ends(gradients) == Ends{2, 3, 4});
  const auto buckets = group(gradients, Ends{3, 4});
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].bytes == 7);
  CHECK(buckets[0].ready_ms == 3);  // the slowest, not the last
  CHECK(buckets[1].bytes == 8);
  CHECK_THROWS_AS(group(gradients, Ends{3}), InternalError);
  CHECK_THROWS_AS(group(gradients, Ends{3, 3, 4}), InternalError);
}

TEST_CASE("the best plan by hand", "[what_if]") {
  // 2 ms + 0.1 ms a byte. {1}{2}{3}: 1..4, 4..7, 10..13. {1 2}{3}: 2..6, 10..13. {1 2 3}: 10..15.
  // {1}{2 3}, which the rule makes of a first cap of 5 bytes: 1..4, 10..14.
  const std::vector<ReadyGradient> gradients{{10, 1, 0}, {10, 2, 0}, {10, 10, 0}};
  const BucketPlan best = best_plan(gradients, 10, {2, 0.1});
  CHECK(best.ends == Ends{2, 3});
  CHECK(best.overlap.exposed_ms == Approx(3));
  const BucketPlan capped = capped_plan(gradients, 5, 100, 10, {2, 0.1});
  CHECK(capped.ends == Ends{1, 3});
  CHECK(capped.overlap.exposed_ms == Approx(4));
  CHECK(capped_plan(gradients, 5, 100, 10, {2, 0.1}, SmallBucket::last).ends == Ends{2, 3});

  CHECK(best_plan(gradients, 10, {100, 0.1}).ends == Ends{3});  // latency is all
  CHECK(best_plan(gradients, 10, {0, 0}).ends == Ends{3});      // nothing costs anything
  CHECK(best_plan({}, 10, {2, 0.1}).ends.empty());
}

TEST_CASE("no partition is better than the best plan", "[what_if]") {
  Random random(11);
  for (int i = 0; i < 200; ++i) {
    const std::size_t count = 1 + random.below(10);
    const auto gradients = random_gradients(random, count, 20);
    const ExchangeTime time{2 * random.uniform(), 1e-6 * random.uniform()};
    const BucketPlan best = best_plan(gradients, 20, time);
    CHECK(best.overlap.exposed_ms == Approx(least_exposed_ms(gradients, 20, time)));
  }
}

TEST_CASE("the best plan of a whole network is never worse than 25 MiB", "[what_if]") {
  Random random(12);
  for (int i = 0; i < 20; ++i) {
    const auto gradients = random_gradients(random, 160, 20);
    const ExchangeTime time{0.5 * random.uniform(), 3e-8 * random.uniform()};
    const double rule_ms = capped_plan(gradients, 1 << 20, 25 << 20, 20, time).overlap.exposed_ms;
    CHECK(best_plan(gradients, 20, time).overlap.exposed_ms <= rule_ms * (1 + 1e-12));
  }
}

}  // namespace shakedown::training
