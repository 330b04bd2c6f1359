// Findings about the nodes of a job, and how they are printed: nodes.txt.
#include "launch/node/health/rules/finding.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/catch.hpp"
#include "tests/node/made_up.hpp"
#include "tests/support/transcript.hpp"

namespace shakedown::node {
namespace {

/// Of eight H200 and four InfiniBand ports each.
std::vector<NodeReport> nodes_of(int count) {
  std::vector<NodeReport> reports(static_cast<std::size_t>(count));
  for (NodeReport& report : reports) {
    report.host = fmt::format("node{:02}", &report - reports.data());
    report.gpus.driver_version = "580.2";
    report.gpus.cuda_driver_version = "13.0";
    report.gpus.confidential_computing = false;
    for (int i = 0; i < 8; ++i) report.gpus.gpus.push_back(healthy_h200(i, report.host));
    report.facts = {{"kernel", "6.1"},
                    {"container", "none seen"},
                    {"driver_module", "580.2"},
                    {"libraries", {{"nccl", "2.27.3"}, {"nccl_built", "2.27.3"}}},
                    {"nccl_variables", Json::object()}};
    for (int adapter = 0; adapter < 4; ++adapter)
      report.facts["infiniband"].push_back({{"port", fmt::format("mlx5_{}:1", adapter)},
                                            {"state", "ACTIVE"},
                                            {"rate_gbits", 400},
                                            {"firmware", "28.43.1014"}});
  }
  return reports;
}

/// Of the trays of a rack: of four GB200, in one NVLink domain.
std::vector<NodeReport> trays_of(int count) {
  auto reports = nodes_of(count);
  Json nodes;
  for (int tray = 0; tray < count; ++tray) nodes.push_back(fmt::format("10.0.0.{}", tray));
  for (NodeReport& report : reports) {
    report.gpus.gpus.resize(4);
    for (GpuReading& gpu : report.gpus.gpus) {
      gpu.model = "NVIDIA GB200";
      gpu.pci_device_id = "10de:2941";
      for (NvlinkReading& link : gpu.nvlinks) link.speed_mbs = 53125;
      gpu.fabric_cluster = "0123456789abcdef0123456789abcdef";
      gpu.fabric_clique = 1;
      gpu.c2c_count = gpu.c2c_active = 10;
      gpu.c2c_errors = 0;
      gpu.memory_numa_node = 2 + 8 * gpu.index;
    }
    report.facts["imex"] = {{"daemon", true}, {"nodes", nodes}, {"domain", "UP"}};
  }
  return reports;
}

/// By a path that begins with a node's number.
std::vector<NodeReport> changed(std::vector<NodeReport> reports, const Json& changes) {
  Json all = Json::array();
  for (const NodeReport& report : reports) {
    all.push_back(Json(report));
    if (report.clock_s) all.back()["clock_s"] = *report.clock_s;
  }
  change(all, changes);
  for (std::size_t i = 0; i < reports.size(); ++i) {
    Known<double> clock_s;
    if (all[i].contains("clock_s")) clock_s = all[i]["clock_s"].get<double>();
    all[i].erase("clock_s");
    reports[i] = read_as<NodeReport>(all[i]);
    reports[i].clock_s = clock_s;
  }
  return reports;
}

/// "WHAT NODES [gb200] [expect GPUS] [mig LAYOUT] [{CHANGES} [{LATER CHANGES}]]".
std::string found_by(const std::string& given) {
  std::istringstream in(given);
  std::string what, word;
  int count = 0;
  bool is_rack = false;
  Expected expected;
  in >> what >> count;
  while (in >> std::ws && in.peek() != '{' && in >> word) {
    if (word == "expect") in >> expected.gpus;
    if (word == "passive") expected.uses_gpus = false;
    if (word == "gb200") is_rack = true;
    if (word == "mig" && in >> word) expected.mig = mig_layout(word);
  }
  Json changes = Json::object(), later_changes = Json::object();
  if (in >> std::ws && in.peek() == '{') in >> changes;
  if (in >> std::ws && in.peek() == '{') in >> later_changes;
  const auto reports = changed(is_rack ? trays_of(count) : nodes_of(count), changes);
  const auto later = changed(reports, later_changes);
  if (what == "differ") return lines_of(not_passed(compare_nodes(reports)));
  if (what == "inforom") return lines_of(judge_inforoms(reports));
  if (what == "growth") return lines_of(not_passed(judge_growth(reports, later, expected)));
  if (what == "again") return lines_of(judge_again(reports, later, expected));
  if (what == "places") {
    std::vector<RankPlace> ranks;
    for (const char* near :
         {"not near NUMA node 1: no core of it is allowed", "NUMA node 0", "NUMA node unknown"})
      ranks.push_back({"node00", "GPU-node00-0", near});
    return lines_of(judge_places(reports, ranks));
  }
  if (what == "load") return lines_of(judge_load(reports, later, expected));
  auto findings = judge_nodes(reports, expected);
  if (what == "found") {
    std::erase_if(findings, [](const Finding& one) {
      return one.outcome <= Outcome::pass || one.outcome == Outcome::unknown;
    });
    return lines_of(findings);
  }
  if (what == "table") return findings_table(findings);
  if (what == "job") return line_of(verdict_of_job(findings, false));
  return lines_of(of_check(findings, what));
}

}  // namespace

TEST_CASE("what is found of nodes", "[node][count][driver][growth][comparison][table][closed]") {
  test::check_transcript("tests/node/nodes.txt", found_by);
}

TEST_CASE("a node to which nothing applies has not passed", "[node][closed]") {
  const std::vector<Finding> none{
      finding_of("acs", shakedown::node::not_applicable("no GPU"), Scope::node, "n0")};
  CHECK(count(none, Outcome::pass) == 0);
  CHECK(verdict_of_job(none, false).outcome == Outcome::inconclusive);
  CHECK_THAT(findings_table(none), ContainsSubstring("N/A      acs"));
}

TEST_CASE("a report is the same after it was sent", "[node][report]") {
  NodeReport report = nodes_of(1).front();
  report.our_pids = {1, 2};
  report.loaded_gpus = {"GPU-n0-0"};
  CHECK(Json(read_as<NodeReport>(Json(report))) == Json(report));
}

TEST_CASE("the list of checks has every check that findings name", "[node][table]") {
  const std::string list = "\n" + list_of_checks();
  for (const Finding& finding : judge_nodes(nodes_of(2), {8}))
    CHECK_THAT(list, ContainsSubstring("\n" + finding.check + " "));
}

}  // namespace shakedown::node
