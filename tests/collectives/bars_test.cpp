#include "collectives/perf/sweep.hpp"

#include <nlohmann/json.hpp>

#include "collectives/perf/output.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::collectives {

TEST_CASE("bars are inconclusive where no row moves data, and on one rank", "[bars]") {
  const std::string name = "all_gather";
  const Operation& operation = find_operation(name);
  const BarOptions both{10, 50};
  const auto unmoved = idle_bars(both, operation, false, 4);
  REQUIRE(unmoved);
  CHECK(unmoved->outcome == Outcome::inconclusive);
  CHECK(unmoved->class_ == Class::config);
  CHECK(unmoved->cause == "--min-busbw 10 --max-latency 50: no row moves data to be judged");
  CHECK_THAT(idle_bars({0, 50}, operation, true, 1)->cause,
             ContainsSubstring("--max-latency 50: one rank exchanges nothing"));
  CHECK_FALSE(idle_bars(both, operation, true, 2));
  CHECK_FALSE(idle_bars({}, operation, false, 1));
}

TEST_CASE("the mean is judged by nine tenths of nccl-tests' bar, and wrong data fail", "[bars]") {
  Tally tally(10);
  tally.count_busbw(8);
  tally.count_busbw(10);
  CHECK(tally.totals().mean_busbw_gbs == 9);
  CHECK(tally.totals().judgement == "OK");
  CHECK(tally.outcome() == Outcome::pass);
  tally.count_busbw(8.9);
  CHECK(tally.totals().judgement == "FAILED");
  CHECK(tally.outcome() == Outcome::fail);
  Tally wrong(std::nullopt);
  Measurement measured;
  measured.wrong = 1;
  wrong.count_wrong(measured);
  CHECK(wrong.totals().judgement.empty());
  CHECK(wrong.outcome() == Outcome::fail);
}

TEST_CASE("a row is a metric line: above 64 KiB its busbw, below its latency", "[bars]") {
  const Backend backend = test::open_backend_of(test::backends().front());
  const NodeMap nodes = map_nodes({"n1", "n1", "n2"});
  std::vector<Unit> units(3);
  for (int rank = 0; rank < 3; ++rank) {
    units[static_cast<std::size_t>(rank)].rank = rank;
    units[static_cast<std::size_t>(rank)].host = nodes.name_of(rank);
  }
  Json fields{{"operation", "all_reduce"},
              {"bytes", 1 << 20},
              {"in_place", true},
              {"dtype", "float32"},
              {"ctas", 0}};
  Figures figures;
  figures.busbw_gbs = 8;
  figures.wrong = 0;
  figures.samples = {100, 200, 400};
  figures.spread.median = 200;
  const auto observation = [&] {
    return observation_of(fields, figures, *backend.world, nodes, units);
  };
  CHECK(observation()->metric == "collective/all_reduce/busbw");
  CHECK(observation()->samples == std::vector<double>{16, 8, 4});
  CHECK(observation()->of.scope == Scope::group);
  CHECK(observation()->of.name == "n1,n2");
  CHECK(observation()->conditions.at("world_size") == "3");
  CHECK(observation()->conditions.at("ranks_per_node") == "2");
  CHECK(observation()->conditions.at("in_place") == "true");
  CHECK(observation()->conditions.at("bytes") == "1048576");
  figures.wrong = 2;
  CHECK(observation()->check == judge::Check::wrong);
  figures.wrong.reset();
  CHECK(observation()->check == judge::Check::unchecked);
  fields["bytes"] = 65536;
  CHECK(observation()->metric == "collective/all_reduce/latency");
  CHECK(observation()->samples == figures.samples);
  fields["algorithm"] = "RING";  // NCCL's log is in the time
  CHECK_FALSE(observation());
  fields.erase("algorithm");
  figures.busbw_gbs = 0;
  CHECK_FALSE(observation());
}

}  // namespace shakedown::collectives
