// Reports of healthy nodes, which tests make sick, and findings by their checks.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/node_rules.hpp"
#include "tests/node/healthy.hpp"

namespace shakedown::node {

inline NodeReport healthy_node(const std::string& host, int gpus = 8) {
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

inline std::vector<NodeReport> healthy_nodes(int count) {
  std::vector<NodeReport> reports;
  for (int i = 0; i < count; ++i) reports.push_back(healthy_node(fmt::format("node{:02}", i)));
  return reports;
}

inline std::vector<Finding> of_check(const std::vector<Finding>& findings,
                                     const std::string& check) {
  std::vector<Finding> found;
  for (const Finding& finding : findings)
    if (finding.check == check) found.push_back(finding);
  return found;
}

inline std::vector<Finding> not_passed(const std::vector<Finding>& findings) {
  std::vector<Finding> found;
  for (const Finding& finding : findings)
    if (finding.outcome != Outcome::pass) found.push_back(finding);
  return found;
}

inline void add_xid(NodeReport& report, int code, double age_s) {
  KernelLog log;
  if (const auto known = report.facts.find(kKernelLogFact); known != report.facts.end())
    log = kernel_log_of(*known);
  log.events.push_back(
      {age_s, KernelEventKind::xid, "0000:18:00", code, "text", ++log.last_sequence});
  report.facts[kKernelLogFact] = to_json(log);
}

}  // namespace shakedown::node
