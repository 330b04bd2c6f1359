// Summaries, intervals, random numbers, ballots.
#include "common/statistics.hpp"

#include <string>

#include "common/ballot.hpp"
#include "common/error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

/// A vote per letter; '-' abstains.
Ballot count_letters(const std::string& votes) {
  std::vector<const char*> of_voters;
  for (const char& vote : votes) of_voters.push_back(vote == '-' ? nullptr : &vote);
  return count_votes(of_voters);
}

}  // namespace

TEST_CASE("summaries are NumPy's, and none of no sample", "[statistics]") {
  // numpy.percentile(a, [50, 95, 99]); std(ddof=1) / mean; scipy.stats.median_abs_deviation
  const std::vector<double> a{3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  const Summary s = summarize(a);
  CHECK(s.count == 10);
  CHECK(s.min == 1);
  CHECK(s.max == 9);
  CHECK(s.median == Approx(3.5));
  CHECK(s.mean == Approx(3.9));
  CHECK(s.p95 == Approx(7.65));
  CHECK(s.p99 == Approx(8.73));
  CHECK(s.mad == Approx(1.5));
  CHECK(s.cv == Approx(0.633287));
  const std::vector<double> one{2};
  CHECK(summarize(one).cv == 0);
  CHECK(summarize(one).p99 == 2);
  CHECK(bootstrap_median(one).low == 2);
  CHECK_THROWS_AS(summarize(std::vector<double>{}), InternalError);
}

TEST_CASE("the bootstrap interval holds the median and tightens with the sample", "[statistics]") {
  Random random(4);
  std::vector<double> few;
  for (int i = 0; i < 25; ++i) few.push_back(10 + random.normal());
  std::vector<double> many = few;
  for (int i = 0; i < 400; ++i) many.push_back(10 + random.normal());
  const Interval wide = bootstrap_median(few);
  const Interval narrow = bootstrap_median(many);
  CHECK(wide.low <= median_of(few));
  CHECK(wide.high >= median_of(few));
  CHECK(narrow.high - narrow.low < (wide.high - wide.low) / 2);
  // the standard error of a normal sample's median is 1.2533 / sqrt(n)
  CHECK(narrow.high - narrow.low == Approx(2 * 1.96 * 1.2533 / std::sqrt(425.0)).epsilon(0.3));
  CHECK(bootstrap_median(many).low == narrow.low);  // repeatable
  CHECK(bootstrap_median(few, 0.5).high - bootstrap_median(few, 0.5).low < wide.high - wide.low);
}

namespace {

Interval interval_of_mean(const std::vector<double>& series) {
  return block_bootstrap_interval(block_bootstrap_means(series), series.size());
}

/// Steps of 10 ms on average, each of which shares `correlation` with the one before it.
std::vector<double> correlated_steps(std::size_t n, double correlation, std::uint64_t seed) {
  Random random(seed);
  double deviation = random.normal() / std::sqrt(1 - correlation * correlation);
  std::vector<double> steps;
  while (steps.size() < n) {
    steps.push_back(10 + deviation);
    deviation = correlation * deviation + random.normal();
  }
  return steps;
}

}  // namespace

TEST_CASE("the block bootstrap holds the true mean of correlated steps", "[statistics]") {
  constexpr int kSeeds = 300;
  for (const auto& [n, correlation] : {std::pair{100, 0.0}, {100, 0.6}, {400, 0.8}, {30, 0.3}}) {
    CAPTURE(n, correlation);
    int held = 0;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Interval interval =
          interval_of_mean(correlated_steps(static_cast<std::size_t>(n), correlation, seed));
      held += interval.low <= 10 && interval.high >= 10;
    }
    CHECK(held >= 0.88 * kSeeds);
    CHECK(held <= 0.99 * kSeeds);
  }
}

TEST_CASE("the block bootstrap is repeatable, and has none of too few steps", "[statistics]") {
  const std::vector<double> steps = correlated_steps(100, 0.5, 2);
  CHECK(block_bootstrap_means(steps) == block_bootstrap_means(steps));
  CHECK(block_bootstrap_means(correlated_steps(24, 0, 1)).empty());
  CHECK(!block_bootstrap_means(correlated_steps(25, 0, 1)).empty());
  CHECK(block_bootstrap_means({}).empty());
  const std::vector<double> alike(50, 2.5);
  CHECK(interval_of_mean(alike).low == Approx(2.5));
  CHECK(interval_of_mean(alike).high == Approx(2.5));
}

TEST_CASE("random numbers are splitmix64's", "[statistics]") {
  // tests/golden/make_golden.py's first uniform numbers of seed 1000
  Random random(1000);
  for (double expected :
       {-0.2014846502447587, -0.7641348074464387, -0.8382424891173141, -0.28042924812558856})
    CHECK(2 * random.uniform() - 1 == expected);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < 20000; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(std::abs(sum / 20000) < 0.03);
  CHECK(squares / 20000 == Approx(1).epsilon(0.05));
}

TEST_CASE("a majority is more than half of all voters; the others are outvoted", "[ballot]") {
  CHECK(count_letters("a").majority);
  CHECK(count_letters("aa").majority);
  CHECK_FALSE(count_letters("ab").majority);
  CHECK(count_letters("aba").majority);
  CHECK_FALSE(count_letters("aabb").majority);
  CHECK_FALSE(count_letters("aa--").majority);
  CHECK(count_letters("aa-").majority);
  using Voters = std::vector<std::size_t>;
  CHECK(count_letters("aa").unanimous);
  CHECK(count_letters("-a-").unanimous);
  CHECK(count_letters("-a-").leader == 1);
  const Ballot ballot = count_letters("b-aca");
  CHECK(ballot.leader == 2);
  CHECK_FALSE(ballot.unanimous);
  CHECK(ballot.outvoted == Voters{0, 3});
  CHECK(count_letters("baa").outvoted == Voters{0});
}

}  // namespace shakedown
