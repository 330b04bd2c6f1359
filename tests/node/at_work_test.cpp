// Findings of a later reading of the same nodes, while the program runs and after.
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/node/healthy_nodes.hpp"

namespace shakedown::node {

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

TEST_CASE("DCGM#2: a corrupt inforom is a failure, one that was not read unknown",
          "[node][growth][closed]") {
  auto reports = healthy_nodes(1);
  reports[0].gpus.gpus[1].inforom_valid = false;
  reports[0].gpus.gpus[2].inforom_valid = true;
  const auto found = judge_inforoms(reports);
  REQUIRE(found.size() == 8);
  CHECK(found[0].outcome == Outcome::unknown);
  CHECK(found[1].outcome == Outcome::fail);
  CHECK(found[1].verdict.class_ == Class::hardware);
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
  CHECK(far[0].outcome == Outcome::warn);
  CHECK(far[0].verdict.class_ == Class::config);
  CHECK(far[0].subject == "rank 0");
  CHECK(far[1].outcome == Outcome::pass);
  CHECK(found("NUMA node unknown")[0].outcome == Outcome::unknown);
  reports[0].facts["numa_nodes"] = 1;
  CHECK(found("NUMA node unknown")[0].outcome == Outcome::pass);
}

TEST_CASE("what fails only under load is found, and what failed before is not repeated",
          "[node][growth][closed]") {
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

TEST_CASE("the PCIe link is judged under load where a rank has loaded the GPU, and not known else",
          "[node][growth][closed]") {
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

}  // namespace shakedown::node
