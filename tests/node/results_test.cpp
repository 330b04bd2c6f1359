// What compute_perf gives the judge of what the ranks measured, and what it concludes itself.
#include "launch/node/compute/results.hpp"

#include <sstream>

#include "common/usage_error.hpp"
#include "launch/node/compute/compute_run.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

Unit h200(int rank) {
  Unit unit{rank, "n1", "GPU-" + std::to_string(rank), "NVIDIA H200", "9.0", 132, {}};
  unit.gpu.pci_device_id = "10de:2335:10de:18be";
  unit.gpu.power_limit_w = 700;
  return unit;
}

Series fp16_cycles(double value) {
  Series series{product_metrics(ProductType::fp16, BackendKind::gpu)[0]};
  series.samples.assign(12, value);
  series.conditions = {{"shape", "8192x8448x8192"}, {"algorithm", "algorithm 66"}};
  series.clock_mhz = 1350;
  series.window.sm_clock_mhz = 1980;  // NVML's, which explains nothing
  series.window.temperature_c = 60;
  series.window.throttle_reasons = 0x4;
  return series;
}
Series copies(double value) {
  Series series{memory_metrics()[2]};
  series.samples.assign(10, value);
  series.conditions = {{"bytes", "1073741824"}};
  series.peak = 4814;
  return series;
}

/// As rank 0 has it of this many GPUs.
Measured measured_on(int gpus, const std::string& wrong = "") {
  Measured measured;
  for (int rank = 0; rank < gpus; ++rank)
    for (Series series : {fp16_cycles(4003), copies(4270)}) {
      series.wrong = wrong;
      measured.observations.push_back(observation_of(series, h200(rank), 1));
      measured.wrong.push_back(wrong);
    }
  return measured;
}

/// As the program judges it.
judge::Judgement judged(const Measured& measured) {
  judge::Evidence evidence{measured.observations, {}, {}};
  for (const Verdict& verdict : wrong_data(measured))
    evidence.statements.push_back({verdict, "", verdict.hosts});
  return judge::judge(evidence, judge::References({}), judge::Limits::embedded(),
                      judge::Boards::embedded(), {"compute_perf", {}});
}

}  // namespace

TEST_CASE("an observation is of the SMs' own clock, and has what explains it", "[compute]") {
  const judge::Observation one = observation_of(fp16_cycles(4003), h200(1), 2);
  CHECK(one.metric == "product/fp16/flop_per_cycle_sm");
  CHECK(one.unit == "FLOP/cycle/SM");
  CHECK((one.of.scope == Scope::gpu && one.of.name == "GPU-1"));
  CHECK(one.look == 2);
  CHECK(one.seen.clock_mhz == 1350);
  CHECK(one.seen.temperature_c == 60);
  CHECK(one.seen.power_limit_w == 700);
  CHECK(one.seen.reasons == 0x4U);
  CHECK((one.check == judge::Check::verified && one.disturbed_by.empty()));

  Series none = fp16_cycles(4003);
  none.unknown = "98 of 132 SMs were reached by both stamps";
  CHECK(observation_of(none, h200(0), 1).disturbed_by.empty());  // of some batches alone
  none.samples.clear();
  CHECK(observation_of(none, h200(0), 1).disturbed_by == none.unknown);
  none.wrong = "element (1, 2) differs by 4";
  CHECK(observation_of(none, h200(0), 1).check == judge::Check::wrong);
}

TEST_CASE("ranks that share cores are no peers", "[compute]") {
  using Cores = std::vector<std::vector<int>>;
  const std::vector<std::string> hosts{"a", "b", "b", "b"};
  const auto shares = shared_cores(hosts, Cores{{0}, {0, 1}, {0, 1}, {0, 1}});
  CHECK(shares ==
        Texts{"", "3 ranks on 2 cores of b", "3 ranks on 2 cores of b", "3 ranks on 2 cores of b"});
  CHECK(shared_cores(hosts, Cores{{0}, {0}, {1}, {2}}) == std::vector<std::string>(4));  // bound
  CHECK(shared_cores(hosts, Cores(4)) == std::vector<std::string>(4));                   // GPUs
}

TEST_CASE("wrong data fail; the same of all devices are nobody's fault", "[compute]") {
  CHECK(wrong_data(measured_on(4)).empty());
  Measured measured = measured_on(4);
  measured.wrong[2] = "element (5, 17) of 96 x 64 differs by 4";  // GPU 1's product
  auto verdicts = wrong_data(measured);
  REQUIRE(verdicts.size() == 1);
  CHECK((verdicts[0].name == "GPU-1" && verdicts[0].outcome == Outcome::fail));
  CHECK((verdicts[0].class_ == Class::hardware && !verdicts[0].action.empty()));
  CHECK((verdicts[0].check == "wrong-data" && verdicts[0].metric.empty()));
  CHECK(verdicts[0].cause ==
        "rank 1 on n1, product/fp16/flop_per_cycle_sm: wrong data: element (5, 17) of 96 x 64 "
        "differs by 4");
  CHECK(judged(measured).job.outcome == Outcome::fail);

  measured = measured_on(2, "the sum differs");
  verdicts = wrong_data(measured);
  REQUIRE(verdicts.size() == 2);  // a product and a copy that are wrong alike are one finding
  for (const Verdict& verdict : verdicts) {
    CHECK(verdict.outcome == Outcome::inconclusive);
    CHECK(verdict.class_ == Class::software);
  }
  CHECK(judged(measured).job.outcome == Outcome::inconclusive);
  measured.wrong[0] = "another sum differs";
  CHECK(judged(measured).job.outcome == Outcome::fail);
  CHECK(wrong_data(measured_on(1, "x"))[0].outcome == Outcome::fail);  // all of one
}

TEST_CASE("others are read before the GPUs are opened and while they are in use", "[compute]") {
  NodeReport before{"n1", {}, 0, {}, {17, 18}, {}};
  before.gpus.gpus = {healthy_h200(0, "n1"), healthy_h200(1, "n1")};
  NodeReport now = before;
  now.gpus.gpus[0].processes = {{{17, {}}}};
  now.gpus.gpus[1].processes = {{{18, {}}}};
  const std::vector<std::string> gpus{"GPU-n1-0", "GPU-n1-1"};
  const auto uses = [&] { return used_by_others(gpus, {before}, {now}); };
  using Uses = std::vector<std::string>;
  CHECK(uses() == Uses{"", ""});
  now.gpus.gpus[1].processes->push_back({99, {}});
  CHECK(uses() == Uses{"", "in use by other processes: pid 99"});
  before.gpus.gpus[0].processes = {{{7, {}}}};
  CHECK(uses()[0] == "in use by other processes: pid 7");
  before.gpus.gpus[0] = healthy_h200(0, "n1");
  before.gpus.gpus[0].memory_used_bytes = 1u << 30;  // a container hides whose it is
  CHECK_THAT(uses()[0], ContainsSubstring("1024 MiB of memory in use"));
  before.gpus.gpus[0].memory_numa_node = 2;  // the system's pages, on Grace
  CHECK(uses()[0].empty());
  CHECK_FALSE(is_confidential({before}, gpus[0]));
  before.gpus.confidential_computing = true;
  CHECK(is_confidential({before}, gpus[0]));
  CHECK_FALSE(is_confidential({before}, "GPU-other"));
  before = now;
  before.gpus.gpus[0] = before.gpus.gpus[1] = healthy_h200(0, "n1");
  before.gpus.gpus[1].uuid = gpus[1];
  now.gpus.gpus[0].processes = {{{4017, {}}}};  // 17, as the host numbers it
  now.gpus.gpus[1].processes = {{{4018, {}}, {4099, {}}}};
  CHECK(uses() == Uses{"", "in use by other processes: pid 4018, 4099, 1 of them this job's"});
  CHECK(used_by_others({gpus[1], gpus[1]}, {before}, {now}) == Uses{"", ""});  // two ranks on it
  CHECK(used_by_others({"", "GPU-other"}, {before}, {now}) == Uses{"", ""});
}

TEST_CASE("the table has a line per metric, of at most 110 columns", "[compute]") {
  Measured measured = measured_on(8);
  for (double& sample : measured.observations[6].samples) sample = 3500;  // GPU 3's product
  measured.observations[1].samples.clear();
  std::istringstream table(table_of(measured.observations, judge::Limits::embedded()));
  std::vector<std::string> lines;
  for (std::string line; std::getline(table, line);) {
    CHECK(line.size() <= 110);
    lines.push_back(line);
  }
  REQUIRE(lines.size() == 4);
  CHECK_THAT(lines[2], ContainsSubstring("FLOP/cycle/SM     4003     3500    3     4003"));
  CHECK(lines[2].ends_with("power"));
  CHECK_THAT(lines[3], ContainsSubstring("memory/copy"));
  measured = measured_on(2);
  for (double& sample : measured.observations[2].samples) sample = 3500;  // GPU 1's product
  CHECK_THAT(table_of(measured.observations, judge::Limits::embedded()),
             ContainsSubstring("FLOP/cycle/SM   3751.5     3500    1     4003"));
  for (judge::Observation& one : measured.observations) one.samples.clear();
  CHECK_THAT(table_of(measured.observations, judge::Limits::embedded()),
             ContainsSubstring("memory/copy"));
}

TEST_CASE("sizes that the products and kernels do not have are usage errors", "[node]") {
  ComputeOptions options;
  const auto n = [&](const Unit& unit) { return product_spec(options, ProductType::bf16, unit).n; };
  CHECK(n(h200(0)) == 8448);
  CHECK(n(Unit{}) == 512);  // a CPU
  CHECK(buffer_bytes(options, BackendKind::cpu) == std::size_t{16} << 20);
  options.size = 1024;
  CHECK(n(h200(0)) == 1024);
  CHECK(cached_by(options, BackendKind::gpu).empty());
  options.memory_bytes = "64M";
  CHECK(cached_by(options, BackendKind::gpu).find("--bytes 64M") == 0);
  CHECK(cached_by(options, BackendKind::cpu).empty());
  options.memory_bytes = "100";
  CHECK_THROWS_AS(buffer_bytes(options, BackendKind::gpu), UsageError);
}

TEST_CASE("the cores of a NUMA node", "[node]") {
  CHECK(numbers_in("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(numbers_in("").empty());
  CHECK(NearDevice("").text() == "NUMA node unknown");
  CHECK(NearDevice("0000:1B:00.0", "/nowhere").text() == "NUMA node unknown");
  const Tree tree;
  tree.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1");
  tree.write("sys/devices/system/node/node1/cpulist", "1022-1023");
  CHECK(NearDevice("0000:1B:00.0", tree.path).text() ==
        "not near NUMA node 1: no core of it is allowed");
  tree.write("sys/devices/system/node/node1/cpulist", "0-1021");
  CHECK(NearDevice("0000:1B:00.0", tree.path).text() == "NUMA node 1");
}

}  // namespace shakedown::node
