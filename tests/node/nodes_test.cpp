// Findings about the nodes of a job: how many GPUs each has, its driver, how nodes differ, and how
// findings are printed.
#include "launch/node/health/rules/finding.hpp"

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"

namespace shakedown::node {
namespace {

Finding count_of(const std::vector<NodeReport>& reports, int option = -1) {
  return of_check(judge_nodes(reports, {option}), "gpu-count").front();
}

NodeReport without_driver() {
  NodeReport report;
  report.host = "n0";
  report.gpus.problem = "libnvidia-ml.so.1: cannot open shared object file: No such file";
  return report;
}

Texts differences(const std::vector<NodeReport>& reports) {
  return briefs(not_passed(compare_nodes(reports)));
}

Json port_of(int adapter, const std::string& state = "ACTIVE", double rate_gbits = 400) {
  return {{"port", fmt::format("mlx5_{}:1", adapter)},
          {"state", state},
          {"rate_gbits", rate_gbits},
          {"firmware", "28.43.1014"}};
}

/// The one finding that is not a pass after `change` of the last of `nodes`, each with four ports.
std::vector<Finding> odd_node(int nodes, const std::function<void(NodeReport&)>& change) {
  auto reports = healthy_nodes(nodes);
  for (NodeReport& report : reports) {
    report.facts["infiniband"] = {port_of(0), port_of(1), port_of(2), port_of(3)};
    report.facts["nccl_variables"] = Json::object();
  }
  CHECK(differences(reports).empty());
  change(reports.back());
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  return found;
}

}  // namespace

TEST_CASE("the number of GPUs is the option's, Slurm's, most nodes' or the bus's",
          "[node][count]") {
  auto reports = healthy_nodes(1);
  CHECK(count_of(reports, 8).outcome == Outcome::pass);
  CHECK(count_of(reports, 9).outcome == Outcome::fail);
  CHECK(count_of(reports, 7).outcome == Outcome::warn);
  CHECK(count_of(reports).outcome == Outcome::unknown);  // CRE#5: nobody says how many

  reports[0].facts["slurm"] = {{"SLURM_GPUS_PER_NODE", "h200:9"}};
  CHECK(count_of(reports).outcome == Outcome::fail);
  CHECK(count_of(reports, 8).outcome == Outcome::pass);
  reports[0].facts["slurm"] = {{"SLURM_JOB_GPUS", "0,1,2,3"}};  // a part of the node's
  CHECK(count_of(reports).outcome == Outcome::pass);
  reports[0].facts["slurm"] = {{"SLURM_JOB_GPUS", "0,2-9"}};
  CHECK(count_of(reports).outcome == Outcome::fail);
  reports[0].facts["slurm"] = {{"SLURM_GPUS_ON_NODE", "8"}};
  CHECK(count_of(reports).outcome == Outcome::pass);
  reports[0].facts.erase("slurm");

  // aicr#1858: one GPU is missing, and nobody says which.
  reports[0].facts["gpus_on_bus"] = {"0000:18:00.0", "0000:19:00.0"};
  reports[0].gpus.gpus.resize(1);
  CHECK(count_of(reports).outcome == Outcome::fail);
  CHECK_THAT(count_of(reports).verdict.cause, ContainsSubstring("on the bus only: 0000:19:00.0"));
  reports[0].facts["container"] = "docker";  // which may have been given one of two
  CHECK(count_of(reports).outcome == Outcome::unknown);

  reports = healthy_nodes(3);
  reports[0].gpus.gpus.pop_back();
  CHECK(count_of(reports).outcome == Outcome::fail);
  CHECK(count_of(reports).verdict.class_ == Class::hardware);
}

TEST_CASE("without a driver GPUs are unknown; a broken one fails", "[node][count][closed]") {
  NodeReport report = without_driver();
  const auto outcome = [&](const char* check, int option = -1) {
    return of_check(judge_nodes({report}, {option}), check)[0].outcome;
  };
  CHECK(outcome("gpu-count") == Outcome::unknown);
  CHECK(outcome("management") == Outcome::unknown);
  CHECK(outcome("gpu-count", 8) == Outcome::fail);
  const Verdict count = of_check(judge_nodes({report}, {8}), "gpu-count").front().verdict;
  CHECK(count.action.find("RMA") == std::string::npos);
  report.facts["driver_module"] = "580.2";
  report.facts["container"] = "docker";  // which was given no GPU, perhaps
  CHECK(outcome("management") == Outcome::warn);
  for (const char* problem :
       {"nvmlInit_v2: Driver/library version mismatch", "libnvidia-ml.so.1: file too short"}) {
    report.gpus.problem = problem;  // open-gpu-kernel-modules#626, soperator#2684
    const auto found = of_check(judge_nodes({report}, {}), "management").front();
    CHECK(found.outcome == Outcome::fail);
    CHECK(found.verdict.class_ == Class::software);
    CHECK_THAT(found.verdict.cause, ContainsSubstring(problem));
    CHECK(found.verdict.action.find("--gpus") == std::string::npos);
  }
  report.gpus.problem = "nvmlInit_v2: Unknown Error";
  CHECK(outcome("management") == Outcome::warn);
  report.facts["container"] = "none seen";
  CHECK(outcome("management") == Outcome::fail);
  report.facts.erase("driver_module");
  CHECK(outcome("management") == Outcome::unknown);
  report.gpus.problem = "nvmlInit_v2: Driver/library version mismatch";
  CHECK(outcome("management") == Outcome::fail);  // which there is not without a driver
  report.gpus.problem.reset();
  report.gpus.stalled = {"nvmlSystemGetDriverVersion"};
  CHECK(outcome("management") == Outcome::fail);
  report.gpus.stalled.clear();
  report.gpus.failed = {"nvmlDeviceGetCount_v2: Unknown Error"};
  CHECK(outcome("management") == Outcome::fail);
}

TEST_CASE("a node without GPU is judged by what is expected of it", "[node][count][closed]") {
  NodeReport report = without_driver();
  const auto outcome = [&](const char* check, int option = -1) {
    return of_check(judge_nodes({report}, {option}), check)[0].outcome;
  };
  using enum Outcome;
  for (const char* check : {"management", "driver", "gpu-count"}) CHECK(outcome(check) == unknown);
  CHECK(outcome("gpu-count", 0) == pass);
  for (const char* check : {"management", "driver"}) CHECK(outcome(check, 0) == std::nullopt);
  report.facts["gpus_on_bus"] = Json::array();
  for (const char* check :
       {"management", "driver", "gpu-count", "acs", "iommu", "peermem", "fabric-manager"})
    CHECK(outcome(check) == std::nullopt);
  CHECK(outcome("gpu-count", 8) == fail);
  report.facts["slurm"] = {{"SLURM_GPUS_ON_NODE", "8"}};
  CHECK(outcome("gpu-count") == fail);
  report.facts.erase("slurm");
  report.facts["driver_module"] = "580.2";  // all GPUs of a GPU node are gone, perhaps
  report.facts["container"] = "none seen";
  CHECK(outcome("management") == fail);
  CHECK(outcome("gpu-count") == unknown);
  // It is no pass: where nothing else passes, neither does the node.
  const std::vector<Finding> none{
      finding_of("acs", shakedown::node::not_applicable("no GPU"), Scope::node, "n0")};
  CHECK(count(none).pass == 0);
  CHECK(verdict_of_job(none, false).outcome == Outcome::inconclusive);
  CHECK_THAT(findings_table(none), ContainsSubstring("N/A      acs"));
}

TEST_CASE("a GPU that is missing is named with its domain", "[node][count]") {
  NodeReport report = healthy_node("n0", 3);
  const char* ids[] = {"00000008:01:00.0", "00000009:01:00.0", "00000018:01:00.0"};
  for (int i = 0; i < 3; ++i) report.gpus.gpus[i].pci_id = ids[i];
  report.facts["gpus_on_bus"] = {"0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0"};
  CHECK_THAT(count_of({report}).verdict.cause, ContainsSubstring("on the bus only: 0019:01:00.0"));
}

TEST_CASE("a driver that opens late fails only in persistence mode", "[node][driver][closed]") {
  NodeReport all = healthy_node("n0");
  all.gpus.gpus.clear();
  all.gpus.stalled = {"nvmlInit_v2"};
  all.gpus.problem = "nvmlInit_v2 did not return within 1.6 s";
  NodeReport one = healthy_node("n0");
  one.gpus.gpus[3] = {};
  one.gpus.gpus[3].index = 3;
  one.gpus.gpus[3].stalled = {"nvmlDeviceGetHandleByIndex_v2"};
  const std::pair<NodeReport, const char*> cases[] = {{all, "management"},
                                                      {one, "management-stall"}};
  for (auto [report, check] : cases) {
    const auto judged = [&] { return judge_nodes({report}, {8}); };
    const auto unknown = not_passed(of_check(judged(), check));
    REQUIRE(unknown.size() == 1);
    CHECK(unknown[0].outcome == Outcome::inconclusive);
    CHECK(unknown[0].verdict.class_ == Class::config);
    CHECK_THAT(unknown[0].verdict.action, ContainsSubstring("nvidia-persistenced"));
    CHECK(of_check(judged(), "gpu-count")[0].outcome != Outcome::fail);  // unknown is not zero
    const Verdict job = verdict_of_job(judged(), false);
    CHECK(job.outcome == Outcome::inconclusive);
    CHECK(job.action == unknown[0].verdict.action);
    report.facts["persistence_daemon"] = true;
    CHECK(not_passed(of_check(judged(), check))[0].outcome == Outcome::fail);
    CHECK(verdict_of_job(judged(), false).outcome == Outcome::fail);
  }
}

TEST_CASE("the driver's module, library and CUDA must fit", "[node][driver]") {
  auto report = healthy_node("n0");
  const auto outcome = [&] { return of_check(judge_nodes({report}, {8}), "driver")[0].outcome; };
  CHECK(outcome() == Outcome::pass);
  report.facts["driver_module"] = "580.1";
  CHECK(outcome() == Outcome::fail);
  report.facts.erase("driver_module");
  report.facts["libraries"]["cuda_built"] = "13.1";
  CHECK(outcome() == Outcome::pass);
  report.gpus.cuda_driver_version = "12.8";
  CHECK(outcome() == Outcome::fail);
  // Which a passive check, and a hook, does not need.
  const Finding passive =
      of_check(judge_nodes({report}, {.gpus = 8, .uses_gpus = false}), "driver").front();
  CHECK(passive.outcome == Outcome::unknown);
  CHECK_THAT(passive.verdict.cause, ContainsSubstring("Shakedown's build, not the node"));
  report.gpus.driver_version.reset();
  CHECK(outcome() == Outcome::unknown);
}

TEST_CASE("a report is the same after it was sent", "[node][report]") {
  NodeReport report = healthy_node("n0", 2);
  report.our_pids = {1, 2};
  report.loaded_gpus = {"GPU-n0-0"};
  CHECK(to_json(node_report_of(to_json(report))) == to_json(report));
}

TEST_CASE("the list of checks has every check that findings name", "[node][table]") {
  const std::string list = "\n" + list_of_checks();
  for (const Finding& finding : judge_nodes(healthy_nodes(2), {8}))
    CHECK_THAT(list, ContainsSubstring("\n" + finding.check + " "));
}

TEST_CASE("the table collapses what is alike and names what is not", "[node][table]") {
  auto reports = healthy_nodes(3);
  reports[1].gpus.gpus[3].volatile_.uncorrected = 2;
  const std::string table = findings_table(judge_nodes(reports, {8}));
  CHECK_THAT(table,
             ContainsSubstring("PASS     persistence        24 GPUs: persistence mode is on\n"));
  CHECK_THAT(table, ContainsSubstring("PASS     gpu-count          3 nodes: 8 GPUs, 8 expected"));
  CHECK_THAT(table, ContainsSubstring(
                        "node01:\nWARN     ecc-volatile       GPU 3: 2 uncorrected ECC errors "
                        "since the driver was loaded, recovered -> run again; RMA if they grow\n"));
  // What is unknown on every node is one line.
  CHECK_THAT(table, ContainsSubstring("node00, node01, node02:\nUNKNOWN  "));
}

TEST_CASE("the table says which GPU of which node, and unknowns in one line", "[node][table]") {
  auto reports = healthy_nodes(3);
  reports[0].gpus.gpus[3].remap_pending = true;
  reports[2].gpus.gpus[5].remap_pending = true;
  GpuReading& stalled = reports[1].gpus.gpus[2];
  stalled = gpu_reading_of({{"index", 2},
                            {"uuid", stalled.uuid},
                            {"model", stalled.model},
                            {"stalled", {"nvmlDeviceGetSerial"}}});
  const auto findings = judge_nodes(reports, {8});
  const std::string table = findings_table(findings);
  const std::string line = "remapped rows of memory wait for a reset -> reset GPU\n";
  CHECK_THAT(table, ContainsSubstring("node00:\nFAIL     row-remap          GPU 3: " + line));
  CHECK_THAT(table, ContainsSubstring("node02:\nFAIL     row-remap          GPU 5: " + line));
  const auto at = table.find(
      "UNKNOWN  25 checks          GPU 2: not read: an earlier call of the "
      "driver did not return (management-error, sane-readings,");
  CHECK(at != std::string::npos);
  CHECK(table.find("not read", at + 80) == std::string::npos);
  CHECK_THAT(verdict_of_job(findings, false).cause,
             ContainsSubstring("; failed on node00, node01, node02"));
}

// Findings of a later reading of the same nodes, while the program runs and after.

TEST_CASE("errors that are counted while the program runs are found", "[node][growth]") {
  const auto before = healthy_nodes(1);
  const auto outcome = [&](auto&& change) {
    auto after = before;
    change(after[0].gpus.gpus[3]);
    return judge_growth(before, after, {8})[3].outcome;
  };
  CHECK(outcome([](GpuReading&) {}) == Outcome::pass);
  CHECK(outcome([](GpuReading& g) { g.volatile_.uncorrected = 1; }) == Outcome::fail);
  CHECK(outcome([](GpuReading& g) { g.nvlinks[2].replay_errors = 1; }) == Outcome::warn);
  CHECK(outcome([](GpuReading& g) { g.pcie_replays = 1; }) == Outcome::warn);
  CHECK(outcome([](GpuReading& g) { g.pcie_replays.reset(); }) == Outcome::unknown);
  // A hardware slowdown that lasts: the time in which limits were violated grows.
  CHECK(outcome([](GpuReading& g) { g.throttle_reasons = 0x8; }) == Outcome::pass);
  CHECK(outcome([](GpuReading& g) { g.throttle_reasons = 0x8, g.power_violation_ns = 1; }) ==
        Outcome::fail);
  CHECK(outcome([](GpuReading& g) { g.power_violation_ns = 1; }) == Outcome::pass);  // a power cap
  // A GPU that is gone, or another in its place.
  CHECK(outcome([](GpuReading& g) { g.uuid = "another"; }) == Outcome::fail);
}

TEST_CASE("DCGM#2: a corrupt inforom fails, one not read is unknown", "[node][growth][closed]") {
  auto reports = healthy_nodes(1);
  reports[0].gpus.gpus[1].inforom_valid = false;
  reports[0].gpus.gpus[2].inforom_valid = true;
  const auto found = judge_inforoms(reports);
  REQUIRE(found.size() == 8);
  CHECK(found[0].outcome == Outcome::unknown);
  CHECK(test::brief(found[1].verdict) == "FAIL GPU-node00-1 HARDWARE");
  CHECK(found[1].subject == "GPU 1");
  CHECK(found[2].outcome == Outcome::pass);
}

TEST_CASE("a rank whose cores are far from its GPU is a warning", "[node][growth]") {
  auto reports = healthy_nodes(1);
  const auto found = [&](const std::string& near) {
    return judge_places(reports, {{"node00", "a", near}, {"node00", "b", "NUMA node 0"}});
  };
  const auto far = found("not near NUMA node 1: no core of it is allowed");
  REQUIRE(far.size() == 2);
  CHECK((far[0].outcome == Outcome::warn && far[0].verdict.class_ == Class::config));
  CHECK(far[0].subject == "rank 0");
  CHECK(far[1].outcome == Outcome::pass);
  CHECK(found("NUMA node unknown")[0].outcome == Outcome::unknown);
  reports[0].facts["numa_nodes"] = 1;
  CHECK(found("NUMA node unknown")[0].outcome == Outcome::pass);
}

TEST_CASE("what fails only under load is found, and nothing twice", "[node][growth][closed]") {
  auto before = healthy_nodes(2);
  before[0].gpus.gpus[1].volatile_.uncorrected = 1;
  add_xid(before[0], 79, 60);
  const auto found = [&](auto&& change) {
    auto later = before;
    change(later[0]);
    std::vector<std::string> checks;
    for (const Finding& finding : judge_again(before, later, {}))
      checks.push_back(finding.check + " " + finding.subject);
    return checks;
  };
  using Checks = std::vector<std::string>;
  CHECK(found([](NodeReport&) {}).empty());
  CHECK(found([](NodeReport& r) { r.gpus.gpus[3].recovery_action = "reset"; }) ==
        Checks{"recovery-action GPU 3"});
  CHECK(found([](NodeReport& r) { r.gpus.gpus[0].stalled = {"nvmlDeviceGetName"}; }) ==
        Checks{"management-stall GPU 0"});
  CHECK(found([](NodeReport& r) { r.gpus.stalled = {"nvmlInit_v2"}; }) == Checks{"management "});
  CHECK(found([](NodeReport& r) { add_xid(r, 48, 1); }) == Checks{"kernel-log "});
  CHECK(found([](NodeReport& r) { add_xid(r, 79, 1); }) == Checks{"kernel-log "});  // once more
  CHECK(found([](NodeReport& r) { r.facts = Json::object(); }).empty());
  // NCCL's segments fill /dev/shm while it works.
  CHECK(found([](NodeReport& r) {
          r.facts["shm"] = {{"total_bytes", 64 << 20}, {"free_bytes", 0}};
        }).empty());
}

TEST_CASE("the PCIe link is judged where a rank loads the GPU", "[node][growth][closed]") {
  const auto before = healthy_nodes(1);
  auto loaded = before;
  loaded[0].loaded_gpus = {"GPU-node00-0", "GPU-node00-1", "GPU-node00-3"};
  loaded[0].gpus.gpus[0].pcie_generation = 5;  // number 1 stays at Gen1
  loaded[0].gpus.gpus[2].pcie_generation = 5;
  loaded[0].gpus.gpus[3].pcie_generation.reset();
  loaded[0].gpus.gpus.pop_back();
  std::vector<MaybeOutcome> severities;
  const auto findings = judge_load(before, loaded, {8});
  for (const Finding& finding : of_check(findings, "pcie-under-load"))
    severities.push_back(finding.outcome);
  using enum Outcome;
  CHECK(severities == std::vector<MaybeOutcome>{pass, fail, unknown, unknown, unknown, unknown,
                                                unknown, unknown});
  CHECK(of_check(findings, "pcie-link").empty());  // it has passed before
  CHECK(of_check(findings, "gpu-count").size() == 1);
  CHECK(findings.size() == 9);
}

// Findings about how the nodes of a job differ.

TEST_CASE("nodes that differ are named by most; of two nobody is", "[node][comparison]") {
  auto reports = healthy_nodes(8);
  CHECK(differences(reports).empty());
  CHECK(compare_nodes({reports[0]}).empty());
  reports[7].gpus.driver_version = "580.1";
  CHECK(differences(reports) == Texts{"WARN node07: driver: 580.1 here, 580.2 on the 7 others"});
  const Verdict verdict = not_passed(compare_nodes(reports))[0].verdict;
  CHECK(verdict.name == "node07");
  CHECK(verdict.action == "reconfigure: the same driver on all nodes");
  reports = healthy_nodes(2);
  reports[1].facts["kernel"] = "6.2";
  CHECK(differences(reports) == Texts{"WARN : kernel differs: 6.1 on node00; 6.2 on node01"});
  CHECK(not_passed(compare_nodes(reports))[0].verdict.scope == Scope::job);
}

TEST_CASE("versions that cannot work together fail; unknowns are named", "[node][comparison]") {
  auto reports = healthy_nodes(3);
  reports[2].facts["libraries"]["nccl"] = "2.26.1";
  reports[1].facts.erase("kernel");
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 2);
  CHECK((found[0].outcome == Outcome::unknown && found[0].node == "node01"));
  CHECK((found[1].outcome == Outcome::fail && found[1].verdict.class_ == Class::software));
}

TEST_CASE("memory, clocks and NICs unlike those of most nodes are named", "[node][comparison]") {
  auto reports = healthy_nodes(4);
  for (NodeReport& report : reports) report.facts["memory_gib"] = 2015;
  reports[1].facts["memory_gib"] = 2010;  // a firmware's share
  CHECK(differences(reports).empty());
  reports[1].facts["memory_gib"] = 1951;
  CHECK(differences(reports) == Texts{"WARN node01: 1951 GiB of memory, 2015 on most nodes"});

  reports = healthy_nodes(4);
  for (NodeReport& report : reports) report.clock_s = 1.7e9;
  const auto with_clock = [&](double ahead_s) {
    *reports[2].clock_s = 1.7e9 + ahead_s;
    return differences(reports);
  };
  CHECK(with_clock(0.9).empty());
  CHECK(with_clock(-3600) == Texts{"FAIL node02: the clock is 3600.0 s behind most nodes"});
  CHECK(with_clock(1.5) == Texts{"WARN node02: the clock is 1.5 s ahead of most nodes"});
  reports.resize(2);
  *reports[1].clock_s += 70;
  CHECK(differences(reports) == Texts{"FAIL : the clock is 70.0 s behind that of node01"});

  reports = healthy_nodes(3);
  for (std::size_t i = 0; i < 3; ++i)  // whatever their names
    reports[i].facts["nics"] = {
        {{"nic", fmt::format("eth{}", i)}, {"state", "up"}, {"speed_mbits", 100000}}};
  CHECK(differences(reports).empty());
  reports[2].facts["nics"][0]["speed_mbits"] = 10000;
  CHECK(differences(reports).size() == 1);
}

TEST_CASE("a lost InfiniBand adapter, link or speed is named", "[node][comparison]") {
  struct Odd {
    int nodes;
    std::function<void(Json&)> change;  // of the ports of the last of them
    const char* found;                  // a part of it
    std::optional<Class> class_;
  };
  const std::vector<Odd> cases{
      {4, [](Json& p) { p.erase(2); },
       "FAIL node03: 3 InfiniBand ports, 4 on most nodes: mlx5_2:1 is missing", Class::hardware},
      {4, [](Json& p) { p = Json::array(); }, "FAIL node03: ", {}},
      // of two nobody knows which is right
      {2,
       [](Json& p) { p.erase(2); },
       "WARN : InfiniBand ports differ: mlx5_2:1 missing on node01",
       {}},
      {4, [](Json& p) { p.push_back(port_of(4)); }, "mlx5_4:1 is here only", {}},
      {4, [](Json& p) { p[3] = port_of(9); }, "named mlx5_9:1, on most nodes mlx5_3:1", {}},
      {4, [](Json& p) { p[1] = port_of(1, "DOWN"); },
       "FAIL node03: InfiniBand port mlx5_1:1: DOWN here, ACTIVE on the 3 others",
       Class::infrastructure},
      {4,
       [](Json& p) { p[1]["rate_gbits"] = 100; },
       "FAIL node03: rate of mlx5_1:1: 100 Gbit/s here, 400 Gbit/s on the 3 others",
       {}},
      {4, [](Json& p) { p[1]["rate_gbits"] = 800; }, "WARN node03: ", {}},
  };
  for (const auto& [nodes, change, found, class_] : cases) {
    CAPTURE(nodes, found);
    const auto odd = odd_node(nodes, [&](NodeReport& r) { change(r.facts["infiniband"]); });
    CHECK_THAT(briefs(odd)[0], ContainsSubstring(found));
    CHECK(briefs(odd)[0].substr(0, 4) ==
          (std::string(found).substr(0, 4) == "FAIL" ? "FAIL" : "WARN"));
    if (class_) CHECK(odd[0].verdict.class_ == class_);
  }
}

TEST_CASE("a variable of some nodes is named with those that lack it", "[node][comparison]") {
  const auto set = [](NodeReport& r) { r.facts["nccl_variables"]["NCCL_ALGO"] = "Ring"; };
  CHECK(briefs(odd_node(4, set)) ==
        Texts{"WARN node03: NCCL_ALGO: Ring here, unset on the 3 others"});
  CHECK_THAT(briefs(odd_node(2, set))[0],
             EndsWith("NCCL_ALGO differs: Ring on node01; unset on node00"));
  auto reports = healthy_nodes(4);
  for (NodeReport& report : reports) set(report);
  reports[1].facts["nccl_variables"] = Json::object();
  reports[2].facts.erase("nccl_variables");  // which is not the same
  CHECK(differences(reports) ==
        Texts{"UNKNOWN node02: NCCL_ALGO is not known here, but on 3 of 4 nodes",
              "WARN node01: NCCL_ALGO: unset here, Ring on 2 others"});
}

}  // namespace shakedown::node
