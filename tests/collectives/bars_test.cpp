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
  const Bars bars({10, 50, "", 5});
  CHECK(bars.judge(row(12), 40, false, true)->code == ExitCode::pass);
  CHECK(bars.judge(row(9), 40, false, true)->code == ExitCode::fail);
  CHECK_FALSE(bars.judge(row(1), 400, false, false));
  CHECK(bars.judge(row(1), 51, true, false)->code == ExitCode::fail);
  CHECK(bars.judge(row(1), 49, true, false)->code == ExitCode::pass);
  CHECK(bars.judge(row(12), 51, true, true)->code == ExitCode::fail);
  CHECK_THAT(bars.judge(row(12), 51, true, true)->cause, ContainsSubstring("--max-latency 50"));
}

TEST_CASE("bars judge nothing on one rank, where nothing is exchanged", "[bars]") {
  const Bars bars({10, 50, "", 5});
  const auto bandwidth = bars.judge(row(0, 0, 1), 40, false, true);
  CHECK(bandwidth->code == ExitCode::inconclusive);
  CHECK_THAT(bandwidth->cause, ContainsSubstring("one rank exchanges nothing"));
  CHECK(bars.judge(row(12, 0, 1), 40, true, true)->code == ExitCode::inconclusive);
  CHECK(bars.judge(row(12, 3, 1), 40, true, true)->code == ExitCode::fail);  // but data are
}

TEST_CASE("bars on sizes are named as they were given", "[bars]") {
  CHECK(Bars({10, 50, "", 5}).bars_on_sizes() == "--min-busbw 10, --max-latency 50");
  CHECK(Bars({0, 50, "", 5}).bars_on_sizes() == "--max-latency 50");
  CHECK(Bars({}).bars_on_sizes().empty());
}

TEST_CASE("wrong data fail without any bar", "[bars]") {
  const Bars bars({});
  CHECK_FALSE(bars.judge(row(12), 40, true, true));
  CHECK(bars.judge(row(12, 3), 40, false, false)->code == ExitCode::fail);
}

}  // namespace shakedown::collectives
