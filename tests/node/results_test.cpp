// What compute_perf concludes from the rates and checks of all ranks.
#include "launch/node/compute/results.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/error.hpp"
#include "launch/node/compute/compute_options.hpp"
#include "launch/node/compute/other_processes.hpp"
#include "launch/node/health/facts/near_device.hpp"
#include "tests/catch.hpp"
#include "tests/node/healthy.hpp"

namespace shakedown::node {
namespace {

const Metric kBf16{"bf16 sustained", "TFLOP/s", {0.93, 0.90}, true};
const Metric kCopy{"memory copy", "GB/s", {0.98, 0.95}, false};

Series series(const Metric& metric, double rate, double clock_mhz, int rounds = 5) {
  Series made{metric, {}};
  for (int round = 0; round < rounds; ++round) {
    GpuWindow window;
    window.sm_clock_mhz = clock_mhz;
    window.temperature_c = 60;
    window.throttle_reasons = 0x4;
    made.samples.push_back({rate * (1 + 0.002 * round), window});
  }
  return made;
}

Results good(std::size_t gpus, int rounds = 5) {
  Results results;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    const double factor = 1 + 0.001 * static_cast<double>(gpu);
    results.push_back(
        {"n1",
         "GPU-" + std::to_string(gpu),
         "H200",
         {series(kBf16, 670 * factor, 1500, rounds), series(kCopy, 4270 * factor, 1900, rounds)}});
  }
  return results;
}

/// As the program does it, with the same rates measured again.
std::vector<Verdict> concluded(const Results& results, const ComputeReference& reference = {}) {
  const RateJudgement judgement = judge(results, reference);
  const auto verdicts = verdicts_of(results, confirmed(judgement, judge(results, reference)));
  for (const Verdict& verdict : verdicts)
    if (verdict.outcome == Outcome::fail && verdict.scope != Scope::job)
      CHECK((verdict.class_ && !verdict.action.empty()));
  return verdicts;
}

TEST_CASE("ranks that share cores are no peers", "[compute]") {
  using Cores = std::vector<std::vector<int>>;
  const std::vector<std::string> hosts{"a", "b", "b", "b"};
  const auto shares = shared_cores(hosts, Cores{{0}, {0, 1}, {0, 1}, {0, 1}});
  CHECK(shares == std::vector<std::string>{"", "3 ranks on 2 cores of b", "3 ranks on 2 cores of b",
                                           "3 ranks on 2 cores of b"});
  CHECK(shared_cores(hosts, Cores{{0}, {0}, {1}, {2}}) == std::vector<std::string>(4));  // bound
  CHECK(shared_cores(hosts, Cores(4)) == std::vector<std::string>(4));                   // GPUs

  Results slow = good(4);
  slow[2].series[0] = series(kBf16, 300, 1500);
  CHECK(concluded(slow).back().outcome == Outcome::fail);
  for (RankResult& result : slow) result.shares = "4 ranks on 2 cores of n1";
  const std::vector<Verdict> verdicts = concluded(slow);
  CHECK(verdicts.size() == 1);
  CHECK(verdicts.back().outcome == Outcome::inconclusive);
  CHECK_THAT(verdicts.back().cause, ContainsSubstring("4 ranks on 2 cores of n1: they compete"));
}

std::string record_text(const Results& results) {
  std::string text = R"({"kind":"run"})";
  for (const RankResult& result : results)
    for (std::size_t metric = 0; metric < result.series.size(); ++metric) {
      Json line{{"kind", "compute"}, {"seconds", 2}};
      line.update(record_of(result, metric));
      if (metric == 0)
        line["size"] = 8192;
      else
        line["bytes"] = 1024;
      text += "\n" + line.dump();
    }
  return text;
}

}  // namespace

TEST_CASE("equal GPUs pass, a slow one is named with what explains it", "[judge]") {
  Results results = good(4);
  auto verdicts = concluded(results);
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].outcome == Outcome::pass);

  results[2].series = {series(kBf16, 670 * 0.85, 1500), series(kCopy, 4270 * 0.93, 1900)};
  verdicts = concluded(results);
  REQUIRE(verdicts.size() == 3);
  for (const Verdict& verdict : {verdicts[0], verdicts[1]}) {
    CHECK((verdict.scope == Scope::gpu && verdict.name == "GPU-2"));
    CHECK(verdict.outcome == Outcome::fail);
    CHECK(verdict.class_ == Class::hardware);
  }
  CHECK(
      verdicts[0].cause.starts_with("rank 2 on n1, bf16 sustained: 571.8 TFLOP/s, compared with "
                                    "its peers in two measurements: "));
  CHECK(verdicts[2].outcome == Outcome::fail);

  results[2].series = {series(kBf16, 670 * 0.85, 1270), series(kCopy, 4270 * 0.97, 1900)};
  verdicts = concluded(results);
  REQUIRE(verdicts.size() == 3);
  CHECK(verdicts[0].class_ == Class::environment);
  CHECK(verdicts[0].cause.find("sw_power_cap") != std::string::npos);
  CHECK(verdicts[1].outcome == Outcome::pass);  // noticed only
  CHECK(verdicts[1].cause.find("within what is allowed") != std::string::npos);
}

TEST_CASE("what is slow in one of two measurements is a remark, and not forgotten", "[judge]") {
  Results slow = good(4);
  slow[2].series[0] = series(kBf16, 500, 1500);
  const RateJudgement first = judge(slow, {}), fine = judge(good(4), {});
  CHECK(suspects(first) == std::vector<std::size_t>{0});
  for (const auto& [judgement, results] :
       {std::pair{confirmed(first, fine), slow}, std::pair{confirmed(fine, first), good(4)}}) {
    const auto verdicts = verdicts_of(results, judgement);
    REQUIRE(verdicts.size() == 2);
    CHECK(verdicts[0].name == "GPU-2");
    CHECK(verdicts[0].outcome == Outcome::pass);
    CHECK(verdicts[0].class_);  // by which launch/acceptance knows a remark
    CHECK(verdicts[0].cause.find("502 TFLOP/s, compared with its peers in 1 of 2 measurements") !=
          std::string::npos);
    CHECK(verdicts[1].outcome == Outcome::pass);
  }
  REQUIRE(confirmed(first, first).findings.size() == 1);
  CHECK(confirmed(first, first).findings[0].slow.fails);
  CHECK(confirmed(fine, fine).findings.empty());
}

TEST_CASE("two GPUs, or few rounds, without a reference are inconclusive", "[judge]") {
  CHECK(concluded(good(2)).back().outcome == Outcome::inconclusive);
  CHECK(concluded(good(2)).back().cause.find("2 devices of H200") != std::string::npos);
  CHECK(concluded(good(4, 4)).back().outcome == Outcome::inconclusive);
  Results mixed = good(4);
  mixed[3].model = "H100";
  CHECK(concluded(mixed).back().cause.find("1 device of H100") != std::string::npos);
}

TEST_CASE("a reference judges any number of GPUs, of its model and sizes", "[judge]") {
  const ComputeReference reference("good.jsonl", record_text(good(2)), 8192, 1024, 2);
  CHECK(concluded(good(1), reference).back().outcome == Outcome::pass);
  Results slow = good(1);
  slow[0].series[1] = series(kCopy, 4000, 1900);
  const auto verdicts = concluded(slow, reference);
  REQUIRE(verdicts.size() == 2);
  CHECK(verdicts[0].cause.find("compared with the reference") != std::string::npos);
  CHECK(verdicts.back().outcome == Outcome::fail);
  slow[0].series = {series(kBf16, 560, 1250), series(kCopy, 4270, 1900)};  // by its clock
  CHECK(concluded(slow, reference)[0].class_ == Class::environment);
  slow[0].series[0] = series(kBf16, 560, 1500);
  CHECK(concluded(slow, reference)[0].class_ == Class::hardware);
  slow.push_back(slow[0]);
  CHECK(concluded(slow, reference)[0].class_ == Class::config);  // both
  const ComputeReference other("good.jsonl", record_text(good(2)), 4096, 1024, 2);
  CHECK(concluded(good(1), other).back().outcome == Outcome::inconclusive);
  const ComputeReference longer("good.jsonl", record_text(good(2)), 8192, 1024, 10);
  CHECK(concluded(good(1), longer).back().outcome == Outcome::inconclusive);
  CHECK(concluded(good(1), longer).back().cause.find("with this size and --seconds") !=
        std::string::npos);
  CHECK_THROWS_AS(ComputeReference("bad.jsonl", "{}\nnonsense", 1, 1, 2), UsageError);
}

TEST_CASE("wrong data fail; the same wrong data of all devices are no device's fault", "[judge]") {
  Results results = good(4);
  results[1].series[0].wrong = "element (3, 4) of 8 x 8 differs by 2";
  auto verdicts = concluded(results);
  REQUIRE(verdicts.size() == 2);
  CHECK((verdicts[0].name == "GPU-1" && verdicts[0].class_ == Class::hardware));
  CHECK(verdicts[0].cause.find("wrong data: element (3, 4)") != std::string::npos);
  for (RankResult& result : results) result.series[0].wrong = "x";
  verdicts = concluded(results);
  REQUIRE(verdicts.size() == 5);
  CHECK(verdicts[0].class_ == Class::software);
  CHECK(verdicts[0].outcome == Outcome::inconclusive);
  CHECK(verdicts.back().outcome == Outcome::inconclusive);
  results[2].series[0].wrong = "y";  // each of them wrong in its own way
  verdicts = concluded(results);
  CHECK(verdicts[0].class_ == Class::hardware);
  CHECK(verdicts.back().outcome == Outcome::fail);
}

TEST_CASE("a GPU that others use is inconclusive with their pids, and nobody's defect", "[judge]") {
  Results results = good(4);
  results[2].series[0] = series(kBf16, 300, 1500);
  CHECK(concluded(results)[0].class_ == Class::hardware);
  results[2].in_use = "in use by other processes: pid 99";
  auto verdicts = concluded(results);
  REQUIRE(verdicts.size() == 2);
  CHECK((verdicts[0].name == "GPU-2" && verdicts[0].outcome == Outcome::inconclusive));
  CHECK(verdicts[0].class_ == Class::environment);
  CHECK_THAT(verdicts[0].cause,
             ContainsSubstring("rank 2 on n1, in use by other processes: pid 99"));
  CHECK((verdicts[1].scope == Scope::job && verdicts[1].outcome == Outcome::inconclusive));
  CHECK(verdicts[1].class_ == Class::environment);
  CHECK(record_of(results[2], 0).at("in_use") == results[2].in_use);
  results[1].series[0] = series(kBf16, 300, 1500);  // used by nobody else
  CHECK(concluded(results).back().outcome == Outcome::fail);
  results = good(4);
  results[2].in_use = "in use by other processes: pid 99";  // though it is not slow
  results[2].series[1].wrong = "x";
  CHECK(concluded(results)[0].outcome == Outcome::fail);  // wrong data are wrong all the same
}

TEST_CASE("others are read before the GPUs are opened and while they are in use", "[judge]") {
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
  before = now;
  before.gpus.gpus[0] = before.gpus.gpus[1] = healthy_h200(0, "n1");
  before.gpus.gpus[1].uuid = gpus[1];
  now.gpus.gpus[0].processes = {{{4017, {}}}};  // 17, as the host numbers it
  now.gpus.gpus[1].processes = {{{4018, {}}, {4099, {}}}};
  CHECK(uses() == Uses{"", "in use by other processes: pid 4018, 4099, 1 of them this job's"});
  CHECK(used_by_others({gpus[1], gpus[1]}, {before}, {now}) == Uses{"", ""});  // two ranks on it
  CHECK(used_by_others({"", "GPU-other"}, {before}, {now}) == Uses{"", ""});
}

TEST_CASE("two groups of peers are inconclusive, unless a reference decides", "[judge]") {
  Results results = good(8);
  for (std::size_t gpu = 0; gpu < 4; ++gpu) results[gpu].series[0] = series(kBf16, 590, 1500);
  const auto verdicts = concluded(results);
  REQUIRE(verdicts.size() == 1);
  CHECK(verdicts[0].outcome == Outcome::inconclusive);
  CHECK(verdicts[0].cause.find("bf16 sustained: no majority of 8 devices agrees within 7 %: 592") !=
        std::string::npos);
  const ComputeReference reference("good.jsonl", record_text(good(2)), 8192, 1024, 2);
  const auto by_reference = concluded(results, reference);
  CHECK(by_reference.size() == 5);
  CHECK(by_reference.back().outcome == Outcome::fail);
}

TEST_CASE("the table has a line per metric, of at most 110 columns", "[judge]") {
  std::istringstream table(table_of(good(8)));
  int lines = 0;
  for (std::string line; std::getline(table, line); ++lines) {
    CHECK(line.size() <= 110);
    if (lines >= 2) CHECK(line.ends_with("power"));
  }
  CHECK(lines == 4);
}

TEST_CASE("sizes that the products and kernels do not have are usage errors", "[node]") {
  ComputeOptions options;
  CHECK(product_size(options, BackendKind::gpu) == 8192);
  CHECK(buffer_bytes(options, BackendKind::cpu) == std::size_t{16} << 20);
  options.size = 100;
  CHECK(cached_by(options, BackendKind::gpu).empty());
  options.memory_bytes = "64M";
  CHECK(cached_by(options, BackendKind::gpu).find("--bytes 64M") == 0);
  CHECK(cached_by(options, BackendKind::cpu).empty());
  options.memory_bytes = "100";
  CHECK_THROWS_AS(product_size(options, BackendKind::gpu), UsageError);
  CHECK_THROWS_AS(buffer_bytes(options, BackendKind::gpu), UsageError);
}

TEST_CASE("a slow host link is the node's, or the binding's where the memory is far", "[judge]") {
  const Metric link{"host to device, alone", "GB/s", {0.98, 0.90}, false};
  Results results = good(4);
  for (RankResult& result : results) result.series = {series(link, 55, 1900)};
  results[2].series = {series(link, 40, 1900)};
  results[2].series[0].detail = "NUMA node 1";
  CHECK(concluded(results)[0].class_ == Class::infrastructure);
  CHECK_THAT(concluded(results)[0].cause, ContainsSubstring("; its host memory: NUMA node 1"));
  results[2].series[0].detail = "not near NUMA node 1: no core of it is allowed";
  CHECK(concluded(results)[0].class_ == Class::config);
  CHECK_THAT(concluded(results)[0].cause, ContainsSubstring("is not near NUMA node 1"));
  results[2].gpu.clear();  // a CPU
  CHECK(concluded(results)[0].class_ == Class::environment);
}

TEST_CASE("DCGM#122: a GPU at a third of its rate has not passed for want of a limit",
          "[judge][closed]") {
  Results slow = good(1);
  slow[0].series[0] = series(kBf16, 670 / 3.0, 1500);
  CHECK(concluded(slow).back().outcome == Outcome::inconclusive);
  const ComputeReference reference("good.jsonl", record_text(good(2)), 8192, 1024, 2);
  CHECK(concluded(slow, reference).back().outcome == Outcome::fail);
}

TEST_CASE("the cores of a NUMA node", "[node]") {
  CHECK(parse_cpu_list("0-3,8") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_cpu_list("").empty());
  CHECK(NearDevice("").text() == "NUMA node unknown");
  CHECK(NearDevice("0000:1B:00.0", "/nowhere").text() == "NUMA node unknown");
  const auto root = std::filesystem::temp_directory_path() / ("near-" + std::to_string(getpid()));
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  };
  write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1");
  write("sys/devices/system/node/node1/cpulist", "1022-1023");
  CHECK(NearDevice("0000:1B:00.0", root.string()).text() ==
        "not near NUMA node 1: no core of it is allowed");
  write("sys/devices/system/node/node1/cpulist", "0-1021");
  CHECK(NearDevice("0000:1B:00.0", root.string()).text() == "NUMA node 1");
  std::filesystem::remove_all(root);
}

}  // namespace shakedown::node
