// What only a check that is not passive sees, much of it while this program works.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "launch/node/health/facts/gpu_counters.hpp"
#include "launch/node/health/facts/kernel_log.hpp"
#include "launch/node/health/facts/near_device.hpp"
#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/host_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

const NodeReport* find_node(const std::vector<NodeReport>& reports, const std::string& host) {
  const auto found = std::ranges::find(reports, host, &NodeReport::host);
  return found == reports.end() ? nullptr : &*found;
}

const GpuReading* find_gpu(const std::vector<NodeReport>& reports, const std::string& host,
                           const std::string& uuid) {
  const NodeReport* node = find_node(reports, host);
  if (node == nullptr || uuid.empty()) return nullptr;
  const auto found = std::ranges::find(node->gpus.gpus, uuid, &GpuReading::uuid);
  return found == node->gpus.gpus.end() ? nullptr : &*found;
}

Judgement judge_growth_of(const GpuReading& before, const GpuReading& after) {
  const auto ecc = grown(before.volatile_.uncorrected, after.volatile_.uncorrected);
  const auto links = grown(nvlink_errors(before), nvlink_errors(after));
  const auto replays = grown(before.pcie_replays, after.pcie_replays);
  if (ecc.value_or(0) > 0)
    return failure(Class::hardware,
                   fmt::format("{} new uncorrected ECC errors while this program ran", *ecc),
                   "reset GPU; RMA if they come back");
  const auto slowed_ns = grown(before.power_violation_ns, after.power_violation_ns).value_or(0) +
                         grown(before.thermal_violation_ns, after.thermal_violation_ns).value_or(0);
  if (const auto slowdown = judge_hardware_slowdown(after, true); slowdown && slowed_ns > 0)
    return *slowdown;
  if (links.value_or(0) > 0)
    return warning(Class::hardware,
                   fmt::format("{} new NVLink errors while this program ran", *links),
                   "inspect links of this GPU; run again");
  if (replays.value_or(0) > 0)
    return warning(Class::hardware,
                   fmt::format("{} new PCIe replays while this program ran", *replays),
                   "reseat GPU or riser; run again");
  std::vector<const char*> unknown;
  if (!ecc) unknown.push_back("ECC errors");
  if (!links) unknown.push_back("NVLink errors");
  if (!replays) unknown.push_back("PCIe replays");
  if (!unknown.empty()) return not_known(fmt::format("not reported: {}", fmt::join(unknown, ", ")));
  return passed("no new error while this program ran");
}

Judgement judge_under_load(const GpuReading* gpu, const NodeReport* report) {
  if (gpu == nullptr) return not_known("not read under load");
  if (std::ranges::find(report->loaded_gpus, gpu->uuid) == report->loaded_gpus.end())
    return not_known("not under load: no rank of this job copied to it while it was read",
                     "run one rank per GPU");
  return judge_pcie_under_load(*gpu);
}

/// One finding per GPU of the first reading, by what became of it.
template <class Judge>
std::vector<Finding> each_gpu(const std::vector<NodeReport>& before, const char* check,
                              Judge&& judge) {
  std::vector<Finding> findings;
  for (const NodeReport& report : before)
    for (const GpuReading& gpu : report.gpus.gpus)
      findings.push_back(finding_of_gpu(check, judge(report.host, gpu), report.host, gpu));
  return findings;
}

Judgement judge_inforom(const GpuReading& gpu) {
  if (!gpu.inforom_valid) return not_known("the driver does not verify the inforom");
  if (*gpu.inforom_valid) return passed("the inforom's checksums are right");
  return failure(Class::hardware, "the inforom is corrupt: its checksums are wrong",
                 "reset GPU; RMA if it stays");
}

Judgement judge_place(const Json& numa_nodes, const std::string& near) {
  if (near.starts_with(kNotNear))
    return warning(Class::config, "the rank's cores are " + near,
                   "let the rank use cores of its GPU's NUMA node: launch/mpi --bind none");
  if (near == kNumaUnknown && numa_nodes != 1) return not_known("the GPU's NUMA node is unknown");
  return passed("the rank's cores are of its GPU's NUMA node");
}

/// The later reading of the GPUs with the host's facts of the first, for work fills /dev/shm and
/// memory; of the kernel's messages those that are new.
NodeReport continued(const NodeReport& before, const NodeReport& later) {
  NodeReport report = later;
  report.facts = before.facts;
  report.facts.erase(kKernelLogFact);
  if (!later.facts.contains(kKernelLogFact) || !before.facts.contains(kKernelLogFact))
    return report;
  const KernelLog known = kernel_log_of(before.facts.at(kKernelLogFact));
  KernelLog log = kernel_log_of(later.facts.at(kKernelLogFact));
  std::erase_if(log.events,
                [&](const KernelEvent& event) { return event.sequence <= known.last_sequence; });
  report.facts[kKernelLogFact] = to_json(log);
  return report;
}

}  // namespace

std::vector<Finding> judge_again(const std::vector<NodeReport>& before,
                                 std::vector<NodeReport> later, const Expected& expected) {
  std::map<std::pair<std::string, std::string>, int> known;  // failures by check and name
  for (const Finding& finding : judge_nodes(before, expected))
    if (finding.outcome == Outcome::fail && finding.check != kKernelLog)
      ++known[{finding.check, finding.verdict.name}];
  for (NodeReport& report : later)
    if (const NodeReport* earlier = find_node(before, report.host)) {
      report = continued(*earlier, report);
      report.was_open = !earlier->gpus.gpus.empty();
    }
  std::vector<Finding> found;
  for (const Finding& finding : judge_nodes(later, expected))
    if (finding.outcome == Outcome::fail && --known[{finding.check, finding.verdict.name}] < 0)
      found.push_back(finding);
  return found;
}

std::vector<Finding> judge_inforoms(const std::vector<NodeReport>& reports) {
  return each_gpu(reports, "inforom",
                  [](const std::string&, const GpuReading& gpu) { return judge_inforom(gpu); });
}

std::vector<Finding> judge_places(const std::vector<NodeReport>& reports,
                                  const std::vector<RankPlace>& ranks) {
  std::vector<Finding> findings;
  for (const RankPlace& rank : ranks) {
    const NodeReport* report = find_node(reports, rank.host);
    const Json numa_nodes = report == nullptr ? Json() : fact_of(report->facts, "numa_nodes");
    findings.push_back(finding_of(
        "rank-numa-node", judge_place(numa_nodes, rank.near), Scope::gpu, rank.gpu, rank.host,
        fmt::format("rank {}", static_cast<std::ptrdiff_t>(&rank - ranks.data()))));
  }
  return findings;
}

std::vector<Finding> judge_load(const std::vector<NodeReport>& before,
                                const std::vector<NodeReport>& under_load,
                                const Expected& expected) {
  auto findings =
      each_gpu(before, "pcie-under-load", [&](const std::string& host, const GpuReading& gpu) {
        return judge_under_load(find_gpu(under_load, host, gpu.uuid), find_node(under_load, host));
      });
  std::set<std::string> slow;  // that rule judges by the load as well
  for (const Finding& finding : findings)
    if (finding.outcome == Outcome::fail) slow.insert(finding.verdict.name);
  for (const Finding& finding : judge_again(before, under_load, expected))
    if (finding.check != kPcieLink || !slow.contains(finding.verdict.name))
      findings.push_back(finding);
  return findings;
}

std::vector<Finding> judge_growth(const std::vector<NodeReport>& before,
                                  const std::vector<NodeReport>& after, const Expected& expected) {
  auto findings =
      each_gpu(before, "errors-under-load", [&](const std::string& host, const GpuReading& gpu) {
        const GpuReading* later = find_gpu(after, host, gpu.uuid);
        if (later != nullptr) return judge_growth_of(gpu, *later);
        if (gpu.uuid.empty()) return not_known("cannot be found again: it has no UUID");
        return failure(Class::hardware, "the driver no longer reports the GPU",
                       "reboot; RMA if it comes back");
      });
  std::ranges::move(judge_again(before, after, expected), std::back_inserter(findings));
  return findings;
}

}  // namespace shakedown::node
