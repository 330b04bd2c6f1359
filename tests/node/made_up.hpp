// Readings and reports of healthy nodes, which tests make sick; the file system of a host as a test
// makes it up; what the rules make of both.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launch/node/health/facts/gpu_reading.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/json_fields.hpp"
#include "launch/node/health/rules/rules.hpp"
#include "tests/support/files.hpp"
#include "tests/support/verdicts.hpp"

namespace shakedown::node {

/// A file of JSON below tests/node/fixtures.
inline Json fixture(const std::string& name) {
  return Json::parse(std::ifstream("tests/node/fixtures/" + name));
}

/// As an idle H200 reads.
inline GpuReading healthy_h200(int index = 0, const std::string& node = "n0") {
  static const auto healthy = read_as<GpuReading>(fixture("healthy_gpu.json"));
  GpuReading gpu = healthy;
  gpu.index = index;
  gpu.uuid = fmt::format("GPU-{}-{}", node, index);
  gpu.serial = fmt::format("165{}{:03}", node, index);
  gpu.pci_id = fmt::format("00000000:{:02X}:00.0", 0x18 + index);
  gpu.numa_node = index / 4;
  return gpu;
}

/// GPUs of one model on one node.
inline GpuContext context_of(const std::vector<GpuReading>& gpus) {
  GpuContext context;
  for (const GpuReading& gpu : gpus) context.peers.push_back(&gpu);
  context.all = context.node = context.peers;
  return context;
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

using Tree = test::TempFolder;  // a root folder

inline Judgements found_by_rule(const Json& facts, const std::string& rule,
                                double xid_window_h = 24) {
  for (const HostRule& each : host_rules(xid_window_h))
    if (each.name == rule) return each.judge(facts);
  return {};
}
inline MaybeOutcome outcome_of(const Json& facts, const std::string& rule) {
  return worst(found_by_rule(facts, rule)).outcome;
}

}  // namespace shakedown::node
