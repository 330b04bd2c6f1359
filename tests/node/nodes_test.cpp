// Findings about the nodes of a job: how many GPUs each has, and how they differ.
#include <functional>

#include "launch/node/health/check/findings_table.hpp"
#include "launch/node/health/rules/node_rules.hpp"
#include "tests/catch.hpp"
#include "tests/node/healthy.hpp"

namespace shakedown::node {
namespace {

NodeReport healthy_node(const std::string& host, int gpus = 8) {
  NodeReport report;
  report.host = host;
  report.gpus.driver_version = "580.2";
  report.gpus.cuda_driver_version = "13.0";
  for (int i = 0; i < gpus; ++i) report.gpus.gpus.push_back(healthy_h200(i, host));
  report.facts = {{"kernel", "6.1"},
                  {"container", "none seen"},
                  {"driver_module", "580.2"},
                  {"libraries", {{"nccl", "2.27.3"}, {"nccl_built", "2.27.3"}}}};
  return report;
}

std::vector<NodeReport> healthy_nodes(int count) {
  std::vector<NodeReport> reports;
  for (int i = 0; i < count; ++i) reports.push_back(healthy_node(fmt::format("node{:02}", i)));
  return reports;
}

std::vector<Finding> of_check(const std::vector<Finding>& findings, const std::string& check) {
  std::vector<Finding> found;
  for (const Finding& finding : findings)
    if (finding.check == check) found.push_back(finding);
  return found;
}

std::vector<Finding> not_passed(const std::vector<Finding>& findings) {
  std::vector<Finding> found;
  for (const Finding& finding : findings)
    if (finding.severity != Severity::pass) found.push_back(finding);
  return found;
}

Json xid(int code, double age_s) {
  return {{"age_s", age_s},
          {"nvswitch", false},
          {"pci_id", "0000:18:00"},
          {"code", code},
          {"text", "text"}};
}

Finding count_of(const std::vector<NodeReport>& reports, int option = -1) {
  return of_check(judge_nodes(reports, {option}), "gpu-count").front();
}

}  // namespace

TEST_CASE("the number of GPUs is that of the option, of Slurm, of most nodes or of the bus",
          "[node][count]") {
  auto reports = healthy_nodes(1);
  CHECK(count_of(reports, 8).severity == Severity::pass);
  CHECK(count_of(reports, 9).severity == Severity::fail);
  CHECK(count_of(reports, 7).severity == Severity::warn);
  CHECK(count_of(reports).severity == Severity::unknown);  // CRE#5: nobody says how many

  reports[0].facts["slurm"] = {{"SLURM_GPUS_PER_NODE", "h200:9"}};
  CHECK(count_of(reports).severity == Severity::fail);
  CHECK(count_of(reports, 8).severity == Severity::pass);
  reports[0].facts["slurm"] = {{"SLURM_JOB_GPUS", "0,1,2,3"}};  // a part of the node's
  CHECK(count_of(reports).severity == Severity::pass);
  reports[0].facts["slurm"] = {{"SLURM_JOB_GPUS", "0,2-9"}};
  CHECK(count_of(reports).severity == Severity::fail);
  reports[0].facts["slurm"] = {{"SLURM_GPUS_ON_NODE", "8"}};
  CHECK(count_of(reports).severity == Severity::pass);
  reports[0].facts.erase("slurm");

  // aicr#1858: one GPU is missing, and nobody says which.
  reports[0].facts["gpus_on_bus"] = {"0000:18:00.0", "0000:19:00.0"};
  reports[0].gpus.gpus.resize(1);
  CHECK(count_of(reports).severity == Severity::fail);
  CHECK_THAT(count_of(reports).verdict.cause, ContainsSubstring("on the bus only: 0000:19:00.0"));
  reports[0].facts["container"] = "docker";  // which may have been given one of two
  CHECK(count_of(reports).severity == Severity::unknown);

  reports = healthy_nodes(3);
  reports[0].gpus.gpus.pop_back();
  CHECK(count_of(reports).severity == Severity::fail);
  CHECK(count_of(reports).verdict.class_ == Class::hardware);
}

TEST_CASE("a node without a driver says what it cannot see; a broken one is found",
          "[node][count][closed]") {
  NodeReport report;
  report.host = "n0";
  report.gpus.problem = "libnvidia-ml.so.1 cannot be opened";
  const auto severity = [&](const char* check, int option = -1) {
    return of_check(judge_nodes({report}, {option}), check).front().severity;
  };
  CHECK(severity("gpu-count") == Severity::unknown);
  CHECK(severity("management") == Severity::unknown);
  CHECK(severity("gpu-count", 8) == Severity::fail);
  const Verdict count = of_check(judge_nodes({report}, {8}), "gpu-count").front().verdict;
  CHECK(count.action.find("RMA") == std::string::npos);
  report.facts["driver_module"] = "580.2";
  CHECK(severity("management") == Severity::warn);
  report.gpus.problem.reset();
  report.gpus.stalled = {"nvmlSystemGetDriverVersion"};
  CHECK(severity("management") == Severity::fail);
  report.gpus.stalled.clear();
  report.gpus.failed = {"nvmlDeviceGetCount_v2: Unknown Error"};
  CHECK(severity("management") == Severity::fail);
}

TEST_CASE("a driver that does not open in time fails only where persistence mode is known to be on",
          "[node][driver][closed]") {
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
    CHECK(unknown[0].severity == Severity::unknown);
    CHECK(unknown[0].verdict.class_ == Class::config);
    CHECK_THAT(unknown[0].verdict.action, ContainsSubstring("nvidia-persistenced"));
    CHECK(of_check(judged(), "gpu-count")[0].severity != Severity::fail);  // unknown is not zero
    const Verdict job = verdict_of_job(judged(), false);
    CHECK(job.outcome == Outcome::inconclusive);
    CHECK(job.action == unknown[0].verdict.action);
    report.facts["persistence_daemon"] = true;
    CHECK(not_passed(of_check(judged(), check))[0].severity == Severity::fail);
    CHECK(verdict_of_job(judged(), false).outcome == Outcome::fail);
  }
}

TEST_CASE("the driver's module, library and CUDA must fit", "[node][driver]") {
  auto report = healthy_node("n0");
  const auto severity = [&] {
    return of_check(judge_nodes({report}, {8}), "driver").front().severity;
  };
  CHECK(severity() == Severity::pass);
  report.facts["driver_module"] = "580.1";
  CHECK(severity() == Severity::fail);
  report.facts.erase("driver_module");
  report.facts["libraries"]["cuda_built"] = "13.1";
  CHECK(severity() == Severity::pass);
  report.gpus.cuda_driver_version = "12.8";
  CHECK(severity() == Severity::fail);
  report.gpus.driver_version.reset();
  CHECK(severity() == Severity::unknown);
}

TEST_CASE("nodes that differ are named by the majority", "[node][comparison]") {
  auto reports = healthy_nodes(8);
  CHECK(not_passed(compare_nodes(reports)).empty());
  CHECK(compare_nodes({reports[0]}).empty());
  reports[7].gpus.driver_version = "580.1";
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  CHECK(found[0].verdict.cause == "driver: 580.1 here, 580.2 on the 7 others");
  CHECK(found[0].severity == Severity::warn);
  CHECK(found[0].verdict.name == "node07");
  CHECK(found[0].verdict.action == "reconfigure: the same driver on all nodes");
}

TEST_CASE("with fewer than three nodes a difference is named and nobody blamed",
          "[node][comparison]") {
  auto reports = healthy_nodes(2);
  reports[1].facts["kernel"] = "6.2";
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  CHECK(found[0].verdict.cause == "kernel differs: 6.1 on node00; 6.2 on node01");
  CHECK(found[0].node.empty());
  CHECK(found[0].verdict.scope == Scope::job);
}

TEST_CASE("versions that cannot work together fail; what is unknown on a node is named",
          "[node][comparison]") {
  auto reports = healthy_nodes(3);
  reports[2].facts["libraries"]["nccl"] = "2.26.1";
  reports[1].facts.erase("kernel");
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 2);
  CHECK(found[0].severity == Severity::unknown);
  CHECK(found[0].node == "node01");
  CHECK(found[1].severity == Severity::fail);
  CHECK(found[1].verdict.class_ == Class::software);
}

TEST_CASE("a node with less memory than most is named, a firmware's share is not",
          "[node][comparison]") {
  auto reports = healthy_nodes(4);
  for (NodeReport& report : reports) report.facts["memory_gib"] = 2015;
  reports[1].facts["memory_gib"] = 2010;
  CHECK(not_passed(compare_nodes(reports)).empty());
  reports[1].facts["memory_gib"] = 1951;
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  CHECK(found[0].verdict.cause == "1951 GiB of memory, 2015 on most nodes");
  CHECK(found[0].node == "node01");
}

TEST_CASE("NICs are compared by speed, whatever their names", "[node][comparison]") {
  auto reports = healthy_nodes(3);
  for (int i = 0; i < 3; ++i)
    reports[static_cast<std::size_t>(i)].facts["nics"] = {
        {{"nic", fmt::format("eth{}", i)}, {"state", "up"}, {"speed_mbits", 100000}}};
  CHECK(not_passed(compare_nodes(reports)).empty());
  reports[2].facts["nics"][0]["speed_mbits"] = 10000;
  CHECK(not_passed(compare_nodes(reports)).size() == 1);
}

namespace {

Json port_of(int adapter, const std::string& state = "ACTIVE", double rate_gbits = 400) {
  return {{"port", fmt::format("mlx5_{}:1", adapter)},
          {"state", state},
          {"rate_gbits", rate_gbits},
          {"firmware", "28.43.1014"}};
}

/// The one finding that is not a pass after `change` of the last of `nodes`, each with four ports.
Finding odd_node(int nodes, const std::function<void(NodeReport&)>& change) {
  auto reports = healthy_nodes(nodes);
  for (NodeReport& report : reports) {
    report.facts["infiniband"] = {port_of(0), port_of(1), port_of(2), port_of(3)};
    report.facts["nccl_variables"] = Json::object();
  }
  CHECK(not_passed(compare_nodes(reports)).empty());
  change(reports.back());
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  return found.front();
}

}  // namespace

TEST_CASE("a node that has lost an InfiniBand adapter, its link or its speed is named",
          "[node][comparison]") {
  Finding found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"].erase(2); });
  CHECK(found.severity == Severity::fail);
  CHECK(found.verdict.class_ == Class::hardware);
  CHECK(found.node == "node03");
  CHECK(found.verdict.cause == "3 InfiniBand ports, 4 on most nodes: mlx5_2:1 is missing");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"] = Json::array(); });
  CHECK(found.severity == Severity::fail);
  found = odd_node(2, [](NodeReport& r) { r.facts["infiniband"].erase(2); });
  CHECK(found.severity == Severity::warn);  // of two nobody knows which is right
  CHECK(found.verdict.cause == "InfiniBand ports differ: mlx5_2:1 missing on node01");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"].push_back(port_of(4)); });
  CHECK(found.severity == Severity::warn);
  CHECK_THAT(found.verdict.cause, ContainsSubstring("mlx5_4:1 is here only"));
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][3] = port_of(9); });
  CHECK(found.severity == Severity::warn);
  CHECK_THAT(found.verdict.cause, ContainsSubstring("named mlx5_9:1, on most nodes mlx5_3:1"));
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1] = port_of(1, "DOWN"); });
  CHECK(found.severity == Severity::fail);
  CHECK(found.verdict.class_ == Class::infrastructure);
  CHECK(found.verdict.cause == "InfiniBand port mlx5_1:1: DOWN here, ACTIVE on the 3 others");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1]["rate_gbits"] = 100; });
  CHECK(found.severity == Severity::fail);
  CHECK(found.verdict.cause == "rate of mlx5_1:1: 100 Gbit/s here, 400 Gbit/s on the 3 others");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1]["rate_gbits"] = 800; });
  CHECK(found.severity == Severity::warn);
}

TEST_CASE("a variable that some nodes have is named with those that lack it",
          "[node][comparison]") {
  const auto set = [](NodeReport& r) { r.facts["nccl_variables"]["NCCL_ALGO"] = "Ring"; };
  Finding found = odd_node(4, set);
  CHECK(found.node == "node03");
  CHECK(found.severity == Severity::warn);
  CHECK(found.verdict.cause == "NCCL_ALGO: Ring here, unset on the 3 others");
  found = odd_node(2, set);
  CHECK(found.verdict.cause == "NCCL_ALGO differs: Ring on node01; unset on node00");
  auto reports = healthy_nodes(4);
  for (NodeReport& report : reports) set(report);
  reports[1].facts["nccl_variables"] = Json::object();
  reports[2].facts.erase("nccl_variables");  // which is not the same
  const auto both = not_passed(compare_nodes(reports));
  REQUIRE(both.size() == 2);
  CHECK(both[0].verdict.cause == "NCCL_ALGO is not known here, but on 3 of 4 nodes");
  CHECK(both[0].severity == Severity::unknown);
  CHECK(both[1].verdict.cause == "NCCL_ALGO: unset here, Ring on 2 others");
}

TEST_CASE("errors that are counted while the program runs are found", "[node][growth]") {
  const auto before = healthy_nodes(1);
  const auto severity = [&](auto&& change) {
    auto after = before;
    change(after[0].gpus.gpus[3]);
    return judge_growth(before, after, {8})[3].severity;
  };
  CHECK(severity([](GpuReading&) {}) == Severity::pass);
  CHECK(severity([](GpuReading& g) { g.volatile_.uncorrected = 1; }) == Severity::fail);
  CHECK(severity([](GpuReading& g) { g.nvlinks[2].replay_errors = 1; }) == Severity::warn);
  CHECK(severity([](GpuReading& g) { g.pcie_replays = 1; }) == Severity::warn);
  CHECK(severity([](GpuReading& g) { g.pcie_replays.reset(); }) == Severity::unknown);
  // A hardware slowdown that lasts: the time in which limits were violated grows.
  CHECK(severity([](GpuReading& g) { g.throttle_reasons = 0x8; }) == Severity::pass);
  CHECK(severity([](GpuReading& g) { g.throttle_reasons = 0x8, g.power_violation_ns = 1; }) ==
        Severity::fail);
  CHECK(severity([](GpuReading& g) { g.power_violation_ns = 1; }) ==
        Severity::pass);  // a power cap
  // A GPU that is gone, or another in its place.
  CHECK(severity([](GpuReading& g) { g.uuid = "another"; }) == Severity::fail);
}

TEST_CASE("DCGM#2: a corrupt inforom is a failure, one that was not read unknown",
          "[node][growth][closed]") {
  auto reports = healthy_nodes(1);
  reports[0].gpus.gpus[1].inforom_valid = false;
  reports[0].gpus.gpus[2].inforom_valid = true;
  const auto found = judge_inforoms(reports);
  REQUIRE(found.size() == 8);
  CHECK(found[0].severity == Severity::unknown);
  CHECK(found[1].severity == Severity::fail);
  CHECK(found[1].verdict.class_ == Class::hardware);
  CHECK(found[1].subject == "GPU 1");
  CHECK(found[2].severity == Severity::pass);
}

TEST_CASE("a rank whose cores are far from its GPU is a warning", "[node][growth]") {
  auto reports = healthy_nodes(1);
  const auto found = [&](const std::string& near) {
    return judge_places(reports, {{"node00", "a", near}, {"node00", "b", "NUMA node 0"}});
  };
  const auto far = found("not near NUMA node 1: no core of it is allowed");
  REQUIRE(far.size() == 2);
  CHECK(far[0].severity == Severity::warn);
  CHECK(far[0].verdict.class_ == Class::config);
  CHECK(far[0].subject == "rank 0");
  CHECK(far[1].severity == Severity::pass);
  CHECK(found("NUMA node unknown")[0].severity == Severity::unknown);
  reports[0].facts["numa_nodes"] = 1;
  CHECK(found("NUMA node unknown")[0].severity == Severity::pass);
}

TEST_CASE("what fails only under load is found, and what failed before is not repeated",
          "[node][growth][closed]") {
  auto before = healthy_nodes(2);
  before[0].gpus.gpus[1].volatile_.uncorrected = 1;
  before[0].facts["kernel_events"] = {xid(79, 60)};
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
  CHECK(found([](NodeReport& r) { r.facts["kernel_events"].push_back(xid(48, 1)); }) ==
        Checks{"kernel-log "});
  CHECK(found([](NodeReport& r) { r.facts["kernel_events"].push_back(xid(79, 1)); }) ==
        Checks{"kernel-log "});  // once more
  CHECK(found([](NodeReport& r) { r.facts = Json::object(); }).empty());
  // NCCL's segments fill /dev/shm while it works.
  CHECK(found([](NodeReport& r) {
          r.facts["shm"] = {{"total_bytes", 64 << 20}, {"free_bytes", 0}};
        }).empty());
}

TEST_CASE("the PCIe link is judged under load where a rank has loaded the GPU, and not known else",
          "[node][growth][closed]") {
  const auto before = healthy_nodes(1);
  auto loaded = before;
  loaded[0].loaded_gpus = {"GPU-node00-0", "GPU-node00-1", "GPU-node00-3"};
  loaded[0].gpus.gpus[0].pcie_generation = 5;  // number 1 stays at Gen1
  loaded[0].gpus.gpus[2].pcie_generation = 5;
  loaded[0].gpus.gpus[3].pcie_generation.reset();
  loaded[0].gpus.gpus.pop_back();
  std::vector<Severity> severities;
  const auto findings = judge_load(before, loaded, {8});
  for (const Finding& finding : of_check(findings, "pcie-under-load"))
    severities.push_back(finding.severity);
  using enum Severity;
  CHECK(severities ==
        std::vector{pass, fail, unknown, unknown, unknown, unknown, unknown, unknown});
  CHECK(of_check(findings, "pcie-link").empty());  // it has passed before
  CHECK(of_check(findings, "gpu-count").size() == 1);
  CHECK(findings.size() == 9);
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

TEST_CASE("the table says which GPU of which node, and in one line what nothing is known of",
          "[node][table]") {
  auto reports = healthy_nodes(3);
  reports[0].gpus.gpus[3].remap_pending = true;
  reports[2].gpus.gpus[5].remap_pending = true;
  GpuReading& stalled = reports[1].gpus.gpus[2];
  GpuReading read;
  read.index = 2;
  read.uuid = stalled.uuid;
  read.model = stalled.model;
  read.stalled = {"nvmlDeviceGetSerial"};
  stalled = read;
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

}  // namespace shakedown::node
