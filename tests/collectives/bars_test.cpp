#include <nlohmann/json.hpp>

#include "collectives/perf/bars.hpp"

#include "tests/catch.hpp"

namespace shakedown::collectives {
namespace {

Json row(double busbw_gbs, double wrong = 0, int ranks = 2) {
  return {{"world_size", ranks},    {"operation", "all_reduce"},
          {"dtype", "float32"},     {"reduction", "sum"},
          {"bytes", 1024},          {"in_place", false},
          {"busbw_gbs", busbw_gbs}, {"wrong_elements", wrong}};
}

}  // namespace

TEST_CASE("bandwidth is judged at the largest size, latency at the smallest", "[bars]") {
  const BarOptions bars{10, 50, "", 5};
  CHECK(judge_row(bars, row(12), 40, false, true)->outcome == Outcome::pass);
  CHECK(judge_row(bars, row(9), 40, false, true)->outcome == Outcome::fail);
  CHECK_FALSE(judge_row(bars, row(1), 400, false, false));
  CHECK(judge_row(bars, row(1), 51, true, false)->outcome == Outcome::fail);
  CHECK(judge_row(bars, row(1), 49, true, false)->outcome == Outcome::pass);
  CHECK(judge_row(bars, row(12), 51, true, true)->outcome == Outcome::fail);
  CHECK_THAT(judge_row(bars, row(12), 51, true, true)->cause,
             ContainsSubstring("--max-latency 50"));
}

TEST_CASE("bars judge nothing on one rank, where nothing is exchanged", "[bars]") {
  const BarOptions bars{10, 50, "", 5};
  const auto bandwidth = judge_row(bars, row(0, 0, 1), 40, false, true);
  CHECK(bandwidth->outcome == Outcome::inconclusive);
  CHECK_THAT(bandwidth->cause, ContainsSubstring("one rank exchanges nothing"));
  CHECK(bandwidth->class_ == Class::config);
  CHECK(judge_row(bars, row(12, 0, 1), 40, true, true)->outcome == Outcome::inconclusive);
  CHECK(judge_row(bars, row(12, 3, 1), 40, true, true)->outcome == Outcome::fail);  // but data are
}

TEST_CASE("bars on sizes are inconclusive where no row moves data", "[bars]") {
  const auto concluded = [](const BarOptions& options, std::size_t elements) {
    Bars bars(options, std::nullopt);
    const std::string name = "all_gather";
    const Operation& operation = find_operation(name);
    bars.start({{&operation, DataType::float32, Reduction::sum, -1,
                 operation.counts(elements, 2, 4), false, 4 * elements}});
    bars.finish_operation(operation);
    return std::make_pair(bars.take_verdicts(), bars.result());
  };
  const auto [verdicts, code] = concluded({10, 50, "", 5}, 2);
  REQUIRE(verdicts.size() == 1);
  CHECK_THAT(verdicts[0].cause, ContainsSubstring("--min-busbw 10, --max-latency 50: no row"));
  CHECK(code == ExitCode::inconclusive);
  CHECK_THAT(concluded({0, 50, "", 5}, 2).first.at(0).cause,
             ContainsSubstring("--max-latency 50: "));
  CHECK(concluded({10, 50, "", 5}, 8).first.empty());
  CHECK(concluded({}, 2).second == ExitCode::pass);
}

TEST_CASE("the mean is judged by nine tenths of nccl-tests' bar, and wrong data fail", "[bars]") {
  BarOptions options;
  options.min_mean_busbw_gbs = 10;
  Bars bars(options, std::nullopt);
  bars.count_busbw(8);
  bars.count_busbw(10);
  CHECK(bars.totals().mean_busbw_gbs == 9);
  CHECK(bars.totals().judgement == "OK");
  CHECK(bars.result() == ExitCode::pass);
  bars.count_busbw(8.9);
  CHECK(bars.totals().judgement == "FAILED");
  CHECK(bars.result() == ExitCode::fail);
  Bars wrong({}, std::nullopt);
  Measurement measured;
  measured.wrong = 1;
  wrong.count_wrong(measured);
  CHECK(wrong.totals().judgement.empty());
  CHECK(wrong.result() == ExitCode::fail);
}

TEST_CASE("wrong data fail without any bar", "[bars]") {
  const BarOptions bars;
  CHECK_FALSE(judge_row(bars, row(12), 40, true, true));
  CHECK(judge_row(bars, row(12, 3), 40, false, false)->outcome == Outcome::fail);
}

}  // namespace shakedown::collectives
