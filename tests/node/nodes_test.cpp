// Findings about the nodes of a job: how many GPUs each has, and how they differ.
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

Finding count_of(const std::vector<NodeReport>& reports, int option = -1) {
  return of_check(judge_nodes(reports, option), "gpu-count").front();
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
  reports[0].facts["slurm"] = {{"SLURM_GPUS_ON_NODE", "8"}};
  CHECK(count_of(reports).severity == Severity::pass);
  reports[0].facts.erase("slurm");

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
    return of_check(judge_nodes({report}, option), check).front().severity;
  };
  CHECK(severity("gpu-count") == Severity::unknown);
  CHECK(severity("management") == Severity::unknown);
  CHECK(severity("gpu-count", 8) == Severity::fail);
  report.facts["driver_module"] = "580.2";
  CHECK(severity("management") == Severity::warn);
  report.gpus.problem.reset();
  report.gpus.stalled = {"nvmlInit_v2"};
  CHECK(severity("management") == Severity::fail);
  report.gpus.stalled.clear();
  report.gpus.failed = {"nvmlDeviceGetCount_v2: Unknown Error"};
  CHECK(severity("management") == Severity::fail);
}

TEST_CASE("the driver's module, library and CUDA must fit", "[node][driver]") {
  auto report = healthy_node("n0");
  const auto severity = [&] {
    return of_check(judge_nodes({report}, 8), "driver").front().severity;
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
  CHECK(found[0].verdict.cause == "driver 580.1 on node07, 580.2 on the 7 others");
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

TEST_CASE("errors that are counted during the work are found", "[node][growth]") {
  const auto before = healthy_nodes(1);
  const auto severity = [&](auto&& change) {
    auto after = before;
    change(after[0].gpus.gpus[3]);
    return judge_growth(before, after)[3].severity;
  };
  CHECK(severity([](GpuReading&) {}) == Severity::pass);
  CHECK(severity([](GpuReading& g) { g.volatile_.uncorrected = 1; }) == Severity::fail);
  CHECK(severity([](GpuReading& g) { g.nvlinks[2].replay_errors = 1; }) == Severity::warn);
  CHECK(severity([](GpuReading& g) { g.pcie_replays = 1; }) == Severity::warn);
  CHECK(severity([](GpuReading& g) { g.pcie_replays.reset(); }) == Severity::unknown);
  CHECK(severity([](GpuReading& g) { g.uuid = "another"; }) == Severity::unknown);
}

TEST_CASE("a report is the same after it was sent", "[node][report]") {
  NodeReport report = healthy_node("n0", 2);
  report.our_pids = {1, 2};
  report.loaded_gpus = {"GPU-n0-0"};
  CHECK(to_json(node_report_of(to_json(report))) == to_json(report));
}

TEST_CASE("the list of checks has every check that findings name", "[node][table]") {
  const std::string list = "\n" + list_of_checks();
  for (const Finding& finding : judge_nodes(healthy_nodes(2), 8))
    CHECK_THAT(list, ContainsSubstring("\n" + finding.check + " "));
}

TEST_CASE("the table collapses what is alike and names what is not", "[node][table]") {
  auto reports = healthy_nodes(3);
  reports[1].gpus.gpus[3].volatile_.uncorrected = 2;
  const std::string table = findings_table(judge_nodes(reports, 8));
  CHECK_THAT(table,
             ContainsSubstring("PASS     persistence        24 GPUs: persistence mode is on\n"));
  CHECK_THAT(table, ContainsSubstring("PASS     gpu-count          3 nodes: 8 GPUs, 8 expected"));
  CHECK_THAT(table, ContainsSubstring(
                        "node01:\nFAIL     ecc-volatile       GPU 3: 2 uncorrected ECC errors "
                        "since the driver was loaded -> reset GPU; RMA if they come back\n"));
  // What is unknown on every node is one line.
  CHECK_THAT(table, ContainsSubstring("node00, node01, node02:\nUNKNOWN  "));
}

}  // namespace shakedown::node
