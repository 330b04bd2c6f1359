// Findings about how the nodes of a job differ.
#include <functional>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/node/healthy_nodes.hpp"

namespace shakedown::node {

TEST_CASE("nodes that differ are named by the majority", "[node][comparison]") {
  auto reports = healthy_nodes(8);
  CHECK(not_passed(compare_nodes(reports)).empty());
  CHECK(compare_nodes({reports[0]}).empty());
  reports[7].gpus.driver_version = "580.1";
  const auto found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  CHECK(found[0].verdict.cause == "driver: 580.1 here, 580.2 on the 7 others");
  CHECK(found[0].outcome == Outcome::warn);
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
  CHECK(found[0].outcome == Outcome::unknown);
  CHECK(found[0].node == "node01");
  CHECK(found[1].outcome == Outcome::fail);
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

TEST_CASE("a clock unlike that of most nodes is named", "[node][comparison]") {
  auto reports = healthy_nodes(4);
  for (NodeReport& report : reports) report.clock_s = 1.7e9;
  const auto odd = [&](double ahead_s) {
    *reports[2].clock_s = 1.7e9 + ahead_s;
    return not_passed(compare_nodes(reports));
  };
  CHECK(odd(0.9).empty());
  auto found = odd(-3600);
  REQUIRE(found.size() == 1);
  CHECK(found[0].node == "node02");
  CHECK(found[0].outcome == Outcome::fail);
  CHECK(found[0].verdict.cause == "the clock is 3600.0 s behind most nodes");
  found = odd(1.5);
  REQUIRE(found.size() == 1);
  CHECK(found[0].outcome == Outcome::warn);
  CHECK(found[0].verdict.cause == "the clock is 1.5 s ahead of most nodes");
  reports.resize(2);
  *reports[1].clock_s += 70;
  found = not_passed(compare_nodes(reports));
  REQUIRE(found.size() == 1);
  CHECK(found[0].outcome == Outcome::fail);
  CHECK(found[0].node.empty());
  CHECK(found[0].verdict.cause == "the clock is 70.0 s behind that of node01");
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
  CHECK(found.outcome == Outcome::fail);
  CHECK(found.verdict.class_ == Class::hardware);
  CHECK(found.node == "node03");
  CHECK(found.verdict.cause == "3 InfiniBand ports, 4 on most nodes: mlx5_2:1 is missing");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"] = Json::array(); });
  CHECK(found.outcome == Outcome::fail);
  found = odd_node(2, [](NodeReport& r) { r.facts["infiniband"].erase(2); });
  CHECK(found.outcome == Outcome::warn);  // of two nobody knows which is right
  CHECK(found.verdict.cause == "InfiniBand ports differ: mlx5_2:1 missing on node01");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"].push_back(port_of(4)); });
  CHECK(found.outcome == Outcome::warn);
  CHECK_THAT(found.verdict.cause, ContainsSubstring("mlx5_4:1 is here only"));
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][3] = port_of(9); });
  CHECK(found.outcome == Outcome::warn);
  CHECK_THAT(found.verdict.cause, ContainsSubstring("named mlx5_9:1, on most nodes mlx5_3:1"));
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1] = port_of(1, "DOWN"); });
  CHECK(found.outcome == Outcome::fail);
  CHECK(found.verdict.class_ == Class::infrastructure);
  CHECK(found.verdict.cause == "InfiniBand port mlx5_1:1: DOWN here, ACTIVE on the 3 others");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1]["rate_gbits"] = 100; });
  CHECK(found.outcome == Outcome::fail);
  CHECK(found.verdict.cause == "rate of mlx5_1:1: 100 Gbit/s here, 400 Gbit/s on the 3 others");
  found = odd_node(4, [](NodeReport& r) { r.facts["infiniband"][1]["rate_gbits"] = 800; });
  CHECK(found.outcome == Outcome::warn);
}

TEST_CASE("a variable that some nodes have is named with those that lack it",
          "[node][comparison]") {
  const auto set = [](NodeReport& r) { r.facts["nccl_variables"]["NCCL_ALGO"] = "Ring"; };
  Finding found = odd_node(4, set);
  CHECK(found.node == "node03");
  CHECK(found.outcome == Outcome::warn);
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
  CHECK(both[0].outcome == Outcome::unknown);
  CHECK(both[1].verdict.cause == "NCCL_ALGO: unset here, Ring on 2 others");
}

}  // namespace shakedown::node
