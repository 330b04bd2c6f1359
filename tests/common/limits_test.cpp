#include "common/judge/limits.hpp"

#include <cmath>

#include "common/error.hpp"
#include "common/judge/series.hpp"
#include "tests/catch.hpp"

namespace shakedown::judge {

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinAbs;

TEST_CASE("a glob's star is any text", "[judge]") {
  CHECK(matches("collective/*/busbw", "collective/all_reduce/busbw"));
  CHECK(matches("*", ""));
  CHECK(matches("a*b*c", "a/b/b/c"));
  CHECK_FALSE(matches("a*b", "a/b/c"));
  CHECK_FALSE(matches("memory/copy", "memory/copy2"));
}

TEST_CASE("what judges has a limit, a class of rates, and what may fail says what to do",
          "[judge]") {
  const Limits& limits = Limits::embedded();
  CHECK(limits.find("product/fp8/flop_per_cycle_sm")->rates == "products");
  CHECK(limits.find("product/int8/flop_per_cycle_sm")->spread >
        limits.find("product/fp16/flop_per_cycle_sm")->spread);
  CHECK(limits.find("collective/all_reduce/busbw")->rates == "collectives");
  CHECK(std::isinf(limits.find("product/fp16/tflops")->floor));
  CHECK(limits.find("memory/cpy") == nullptr);
  for (const Limit& limit : limits.rows()) {
    INFO(limit.metric);
    CHECK((limit.warns || !limit.action.empty()));
    CHECK((!limit.warns || (limit.rates.empty() && !limit.share)));
    CHECK((limit.statistic == Statistic::best && !limit.warns) == (limit.looks == 3));
  }
}

TEST_CASE("a user's limits change only the keys that they name", "[judge]") {
  const Limits limits = Limits::embedded().with(
      R"([{"metric": "memory/*", "floor": 0.1}, {"metric": "memory/copy", "share": null},
          {"metric": "product/{fp16,bf16}/*", "samples": 7}])",
      "l.json");
  CHECK(limits.find("memory/copy")->floor == 0.1);  // of both rows
  CHECK_FALSE(limits.find("memory/copy")->share);
  CHECK(limits.find("memory/read")->share == 0.75);
  CHECK(limits.find("memory/read")->spread == 0.01);
  CHECK(limits.find("product/bf16/clock_mhz")->samples == 7);
  CHECK(limits.find("product/bf16/clock_mhz")->floor == 0.06);
  CHECK(limits.find("product/fp32/clock_mhz")->samples == 5);
  Limits barred = limits;
  barred.bar("collective/all_reduce/busbw", 400, std::nullopt);
  CHECK(barred.find("collective/all_reduce/busbw")->least == 400);
  CHECK_FALSE(barred.find("collective/all_gather/busbw")->least);
  CHECK_THROWS_AS(barred.bar("collective", 1, std::nullopt), UsageError);
}

TEST_CASE("an error in the limits names file, row and key", "[judge]") {
  const auto refused = [](const std::string& rows, const std::string& with) {
    CHECK_THROWS_WITH(Limits::embedded().with(rows, "l.json"),
                      ContainsSubstring("l.json") && ContainsSubstring(with));
  };
  refused(R"([{"metric": "memory/copy"}, {"metric": "memory/copy", "flor": 1}])",
          "limit 2 \"memory/copy\": unknown key flor");
  refused(R"([{"metric": "memory/cpy", "floor": 1}])", "matches none");
  refused(R"([{"metric": "memory/copy", "floor": -1}])", "floor: -1 is less than 0");
  refused(R"([{"metric": "memory/copy", "floor": "1"}])", "floor: a number");
  refused(R"([{"metric": "memory/copy", "share": 75}])", "share: more than 0 and at most 1");
  refused(R"([{"metric": "memory/copy", "samples": 1.5}])", "samples: a whole number");
  refused(R"([{"metric": "memory/copy", "class": "hard"}])", "class: hard is not one of HARDWARE");
  refused(R"([{"metric": "memory/copy", "least": 2, "most": 1}])", "least: 2 is above most, 1");
  refused(R"([{"floor": 1}])", "metric is missing");
  refused(R"({"metric": "memory/copy"})", "a list");
  refused("[", "no JSON");
}

TEST_CASE("a look's spread is that of all its resamples", "[judge]") {
  const std::vector<double> samples{10, 12, 11, 17, 13};
  const std::size_t n = samples.size();
  for (const auto& [statistic, less] :
       {std::pair{Statistic::median, true}, {Statistic::best, true}, {Statistic::best, false}}) {
    const double value = statistic_of(samples, statistic, less);
    double squares = 0;
    for (int code = 0; code < 3125; ++code) {
      std::vector<double> drawn(n);
      for (int i = 0, rest = code; i < 5; ++i, rest /= 5)
        drawn[static_cast<std::size_t>(i)] = samples[static_cast<std::size_t>(rest % 5)];
      squares += std::pow(statistic_of(drawn, statistic, less) / value - 1, 2) / 3125;
    }
    CHECK_THAT(look_spread(samples, statistic, less), WithinAbs(std::sqrt(squares), 1e-12));
  }
  CHECK(look_spread(samples, Statistic::last, true) == 0);
  CHECK(statistic_of(samples, Statistic::last, true) == 13);
  // Of an even number between those of its neighbours, of many as the normal distribution has it.
  std::vector<double> many(2000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = 1 + static_cast<double>(i) / 2000;
  CHECK_THAT(look_spread(many, Statistic::median, true),
             WithinAbs(0.5 / std::sqrt(2000.0) / 1.5, 1e-5));
  CHECK(std::isnan(look_spread({}, Statistic::median, true)));
  CHECK(std::isnan(statistic_of(std::vector{1.0, std::nan("")}, Statistic::best, true)));
  CHECK(std::isnan(look_spread(std::vector{0.0, 0.0}, Statistic::median, true)));
}

}  // namespace shakedown::judge
