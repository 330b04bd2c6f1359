// Which GPUs are called slow, and how seldom a healthy one is.
#include "launch/node/compute/judge.hpp"

#include <cmath>

#include "common/nvml.hpp"
#include "common/random.hpp"
#include "launch/node/compute/metrics.hpp"
#include "tests/catch.hpp"

namespace shakedown::node {
namespace {

/// What healthy GPUs differ by: each from the others for good, and from round to round, as shares.
/// Published figures, not this project's: it has measured two H200s at most, whose rates show the
/// spread of rounds (products within 3 %, so 1 % of standard deviation) but not that of a fleet. Of
/// products eight H200s' power-limited rates lie within 5 to 8 % (ml-engineering; Sinha et al.,
/// SC22), so their standard deviation is about 2 %. Of memory and links: ten times less.
struct Spread {
  double between_gpus;
  double between_rounds;
};
Spread spread_of(const Metric& metric) {
  return metric.follows_clock ? Spread{0.02, 0.01} : Spread{0.003, 0.002};
}

constexpr std::size_t kGpus = 8;
constexpr std::size_t kRounds = 5;

std::vector<double> qualities(const Spread& spread, Random& random) {
  std::vector<double> quality;
  for (std::size_t gpu = 0; gpu < kGpus; ++gpu)
    quality.push_back(1 + spread.between_gpus * random.normal());
  return quality;
}

Rates measured(const std::vector<double>& quality, const Spread& spread, Random& random) {
  Rates rates;
  for (const double one : quality) {
    std::vector<double> rounds;
    for (std::size_t round = 0; round < kRounds; ++round)
      rounds.push_back(100 * one * (1 + spread.between_rounds * random.normal()));
    rates.push_back(rounds);
  }
  return rates;
}

/// The GPUs that fail, as the program judges: measured, and what is slow once more.
std::vector<Slow> judged(const std::vector<double>& quality, const Metric& metric, Random& random) {
  const Spread spread = spread_of(metric);
  const auto first = slow_among_peers(measured(quality, spread, random), metric.limits);
  bool any = false;
  for (const Slow& slow : first) any = any || slow.fails;
  if (!any) return {};
  return confirmed(first, slow_among_peers(measured(quality, spread, random), metric.limits));
}

}  // namespace

TEST_CASE("eight equal noisy GPUs: a false alarm in fewer than one of 1,000 jobs", "[judge]") {
  // None in 3,000 jobs: below 1 in 1,000 at 95 % (the rule of three).
  Random random(2026);
  int alarms = 0;
  for (int job = 0; job < 3000; ++job)
    for (const Metric& metric : all_metrics(all_product_types())) {
      const std::vector<double> quality = qualities(spread_of(metric), random);
      alarms += judged(quality, metric, random).empty() ? 0 : 1;
      alarms += divided(measured(quality, spread_of(metric), random), metric.limits) ? 1 : 0;
    }
  CHECK(alarms == 0);
}

TEST_CASE("a GPU that is 12 % slow is named, and no other", "[judge]") {
  Random random(7);
  int named = 0;
  int jobs = 0;
  for (int job = 0; job < 200; ++job)
    for (const Metric& metric : all_metrics({ProductType::bf16})) {
      const bool product = metric.follows_clock;
      // of products with half of the spread: of GPUs in one rack, equally cooled
      Spread spread = spread_of(metric);
      spread.between_gpus = product ? 0.01 : spread.between_gpus;
      std::vector<double> quality = qualities(spread, random);
      quality[3] = 0.88;
      const std::vector<Slow> slow = judged(quality, metric, random);
      ++jobs;
      for (const Slow& one : slow) CHECK(one.gpu == 3);
      named += slow.size() == 1 ? 1 : 0;
    }
  CAPTURE(named, jobs);
  CHECK(named >= 0.85 * jobs);
}

TEST_CASE("both the ratio and z must be beyond their limits, in most rounds", "[judge]") {
  const Limits limits{0.93, 0.90};
  const Rates even{{100, 100, 100, 100, 100}, {101, 101, 101, 101, 101}, {99, 99, 99, 99, 99}};
  const auto with = [&](std::vector<double> rounds) {
    Rates rates = even;
    rates.push_back(std::move(rounds));
    return slow_among_peers(rates, limits);
  };
  CHECK(with({100, 100, 100, 100, 100}).empty());
  CHECK(with({100, 100, 100, 80, 80}).empty());  // two rounds of five
  auto slow = with({100, 100, 80, 80, 80});
  REQUIRE(slow.size() == 1);
  CHECK((slow[0].gpu == 3 && slow[0].fails && slow[0].slow_rounds == 3));
  slow = with({92, 92, 92, 92, 92});  // noticed only
  REQUIRE(slow.size() == 1);
  CHECK(!slow[0].fails);
  CHECK(slow[0].ratio == Approx(92 / 99.5));
  CHECK(confirmed(slow, slow).empty());
  slow = with({80, 80, NAN, 80, 0});  // what was not measured is slow
  REQUIRE(slow.size() == 1);
  CHECK(slow[0].slow_rounds == 5);
  CHECK(confirmed(slow, slow).size() == 1);
  CHECK(confirmed(slow, {}).empty());
}

TEST_CASE("GPUs of which no majority agrees are divided", "[judge]") {
  const Limits limits{0.93, 0.90};
  const auto of = [](std::vector<double> medians) {
    Rates rates;
    for (const double median : medians) rates.push_back(std::vector<double>(kRounds, median));
    return rates;
  };
  CHECK(divided(of({100, 80, 120}), limits));
  CHECK(divided(of({100, 100, 101, 89, 89, 88}), limits));
  CHECK(!divided(of({100, 100, 101, 100, 89, 89, 88}), limits));
  CHECK(!divided(of({100, 100, 100, 94, 94, 94}), limits));  // as healthy GPUs differ
  CHECK(divided(of({100, NAN, 100, 0}), limits));            // half were not measured
  Rates rates = of({100, 100, 80, 80});
  rates[2] = {100, 100, 100, 80, 80};  // a majority in three rounds of five
  CHECK(!divided(rates, limits));
  rates[2] = {100, 100, 80, 80, 80};
  CHECK(divided(rates, limits));
}

TEST_CASE("two GPUs, or four rounds, are not compared; a reference judges them", "[judge]") {
  const std::vector<double> five(5, 100.0);
  CHECK(!comparable({five, five}));
  CHECK(comparable({five, five, five}));
  CHECK(!comparable({five, five, std::vector<double>(4, 100.0)}));
  CHECK(slow_by_reference({five, five}, {99, 100, 101}, {0.95, 0.9}).empty());
  const auto slow = slow_by_reference({five, five}, {120, 121, 119}, {0.95, 0.9});
  REQUIRE(slow.size() == 2);
  CHECK((slow[0].fails && slow[1].fails));
}

TEST_CASE("a low rate is explained by its clock, or is the chip's", "[judge]") {
  const Limits limits{0.93, 0.90};
  const Slow slow{3, true, 0.85, 12, 5, 5};
  const auto class_of = [&](double clock, std::uint64_t reasons) {
    return explain(slow, limits, {clock, 1500, 83, 71, reasons}).class_;
  };
  CHECK(class_of(1500, 0x4) == Class::hardware);
  CHECK(class_of(1275, 0x4) == Class::environment);
  CHECK(class_of(1275, 0x20) == Class::environment);
  CHECK(class_of(1275, 0x8) == Class::environment);
  CHECK(class_of(1275, 0x2) == Class::config);
  const Explanation heat = explain(slow, limits, {1275, 1500, 83, 71, 0x24});
  CHECK(heat.cause.find("1275 MHz, usual 1500 MHz; 83 C, usual 71 C") != std::string::npos);
  CHECK(heat.action.find("cooling") != std::string::npos);
  const Explanation unknown = explain(slow, limits, {kUnknown, kUnknown, kUnknown, kUnknown, {}});
  CHECK(unknown.class_ == Class::hardware);
  CHECK(unknown.action.starts_with("run again"));
  CHECK(explain(slow, limits, {1275, 1500, 83, 71, {}}).class_ == Class::environment);
  CHECK(unknown.cause.find("15.0 % slower, z = 12, in 5 of 5 rounds") == 0);
}

}  // namespace shakedown::node
