// Readings and reports of healthy nodes, which tests make sick; the file system of a host as a test
// makes it up; what the rules make of both.
#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"
#include "tests/support/files.hpp"
#include "tests/support/verdicts.hpp"

namespace shakedown::node {

/// As an idle H200 reads.
inline GpuReading healthy_h200(int index = 0, const std::string& node = "n0") {
  GpuReading gpu;
  gpu.index = index;
  gpu.uuid = fmt::format("GPU-{}-{}", node, index);
  gpu.model = "NVIDIA H200";
  gpu.pci_device_id = "10de:2335:10de:18be";
  gpu.serial = fmt::format("165{}{:03}", node, index);
  gpu.vbios = "96.00.A5.00.01";
  gpu.pci_id = fmt::format("00000000:{:02X}:00.0", 0x18 + index);
  gpu.numa_node = index / 4;
  gpu.sm_clock_mhz = 345, gpu.max_sm_clock_mhz = 1980;
  gpu.memory_clock_mhz = gpu.max_memory_clock_mhz = 3201;
  gpu.power_w = 76, gpu.power_limit_w = gpu.power_limit_default_w = 700;
  gpu.temperature_c = 31, gpu.memory_temperature_c = 36, gpu.temperature_margin_c = 54;
  gpu.utilisation_percent = gpu.memory_utilisation_percent = 0;
  gpu.memory_used_bytes = 4u << 20, gpu.memory_total_bytes = 143771ull << 20;
  gpu.throttle_reasons = 0x1;  // idle
  gpu.power_violation_ns = gpu.thermal_violation_ns = 0;
  gpu.persistence = gpu.ecc_enabled = true;
  gpu.mig_enabled = false;
  gpu.compute_mode = "default";
  gpu.volatile_ = gpu.aggregate = {0, 0};
  gpu.aggregate_sram_uncorrected = 0;
  gpu.sram_threshold_exceeded = gpu.remap_pending = gpu.remap_failure = false;
  gpu.remapped_corrected = gpu.remapped_uncorrected = 0;
  gpu.recovery_action = "none";
  gpu.pcie_generation = 1, gpu.pcie_width = 16;  // idle
  gpu.max_pcie_generation = 5, gpu.max_pcie_width = 16;
  gpu.pcie_replays = 0;
  gpu.nvlink_count = 18;
  for (int link = 0; link < 18; ++link) gpu.nvlinks.push_back({link, true, 26562, 0, 0, 0});
  gpu.fabric_state = "completed", gpu.fabric_status = "success";
  gpu.processes.emplace();
  return gpu;
}

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

/// "WARN node07: the cause".
inline Texts briefs(const std::vector<Finding>& findings) {
  Texts all;
  for (const Finding& finding : findings)
    all.push_back(
        fmt::format("{} {}: {}", text_of(finding.outcome), finding.node, finding.verdict.cause));
  return all;
}

/// Changes the value at a path as "nvlinks/12-17/active", where numbers are places of a list; null
/// takes it away.
inline void change(Json& value, const std::string& path, const Json& to) {
  const std::size_t slash = path.find('/');
  const std::string key = path.substr(0, slash);
  const auto change_in = [&](auto at) {
    if (slash != path.npos)
      change(value[at], path.substr(slash + 1), to);
    else if (to.is_null())
      value.erase(at);
    else
      value[at] = to;
  };
  if (!value.is_array()) return change_in(key);
  for (const int at : numbers_in(key)) change_in(static_cast<std::size_t>(at));
}
/// By path, in their order.
inline void change(Json& value, const Json& changes) {
  for (const auto& [path, to] : changes.items()) change(value, path, to);
}

/// For a transcript: "WARN HARDWARE: the cause -> the action".
inline std::string line_of(const Judgement& judgement) {
  const bool undecided = judgement.outcome == Outcome::inconclusive;
  return fmt::format("{}{}: {}{}", undecided ? "INCONCLUSIVE" : text_of(judgement.outcome),
                     judgement.class_ ? std::string(" ") + name_of(*judgement.class_) : "",
                     judgement.cause, judgement.action.empty() ? "" : " -> " + judgement.action);
}
/// "ecc-volatile n0 GPU 3: WARN HARDWARE: the cause -> the action", a line each.
inline std::string lines_of(const std::vector<Finding>& findings) {
  std::string lines;
  for (const Finding& finding : findings) {
    lines += finding.check;
    for (const std::string& word : {finding.node, finding.subject})
      if (!word.empty()) lines += " " + word;
    lines += ": " +
             line_of(Judgement{finding.outcome, finding.verdict.cause, finding.verdict.class_,
                               finding.verdict.action}) +
             "\n";
  }
  return lines.empty() ? "nothing" : lines;
}

inline void add_xid(NodeReport& report, int code, double age_s) {
  KernelLog log;
  if (const auto known = report.facts.find(kKernelLogFact); known != report.facts.end())
    log = kernel_log_of(*known);
  log.events.push_back(
      {age_s, KernelEventKind::xid, "0000:18:00", code, "text", ++log.last_sequence});
  report.facts[kKernelLogFact] = to_json(log);
}

using Tree = test::TempFolder;  // a root folder

inline MaybeOutcome outcome_of(const Json& facts, const std::string& rule) {
  std::vector<Judgement> judgements;
  for (const HostRule& each : host_rules())
    if (each.name == rule) judgements = each.judge(facts);
  return worst(judgements).outcome;
}

}  // namespace shakedown::node
