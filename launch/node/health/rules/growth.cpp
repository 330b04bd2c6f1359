// Errors that were counted while this program worked.
#include <fmt/format.h>

#include "launch/node/health/rules/gpu_rules.hpp"
#include "launch/node/health/rules/node_rules.hpp"

namespace shakedown::node {
namespace {

const GpuReading* find_gpu(const std::vector<NodeReport>& reports, const std::string& uuid) {
  for (const NodeReport& report : reports)
    for (const GpuReading& gpu : report.gpus.gpus)
      if (!uuid.empty() && gpu.uuid == uuid) return &gpu;
  return nullptr;
}

std::optional<std::uint64_t> link_errors(const GpuReading& gpu) {
  if (gpu.nvlinks.empty() && gpu.nvlink_count != 0) return std::nullopt;  // not reported
  std::uint64_t errors = 0;
  for (const NvlinkReading& link : gpu.nvlinks)
    for (const auto& counter : {link.crc_errors, link.replay_errors, link.recovery_errors}) {
      if (!counter) return std::nullopt;
      errors += *counter;
    }
  return errors;
}

/// How much a counter grew; none where it is not known, or was reset meanwhile.
std::optional<std::uint64_t> growth(const Known<std::uint64_t>& before,
                                    const Known<std::uint64_t>& after) {
  if (!before || !after || *after < *before) return std::nullopt;
  return *after - *before;
}

Judgement judge(const GpuReading* before, const GpuReading& after) {
  if (before == nullptr) return not_known("not read before the work");
  const auto ecc = growth(before->volatile_.uncorrected, after.volatile_.uncorrected);
  const auto links = growth(link_errors(*before), link_errors(after));
  const auto replays = growth(before->pcie_replays, after.pcie_replays);
  if (ecc.value_or(0) > 0)
    return failure(Class::hardware, fmt::format("{} uncorrected ECC errors during the work", *ecc),
                   "reset GPU; RMA if they come back");
  if (links.value_or(0) > 0)
    return warning(Class::hardware, fmt::format("{} NVLink errors during the work", *links),
                   "inspect links of this GPU; run again");
  if (replays.value_or(0) > 0)
    return warning(Class::hardware, fmt::format("{} PCIe replays during the work", *replays),
                   "reseat GPU or riser; run again");
  if (!ecc || !links || !replays) return not_known("an error counter is not reported");
  return passed("no error was counted during the work");
}

}  // namespace

std::vector<Finding> judge_growth(const std::vector<NodeReport>& before,
                                  const std::vector<NodeReport>& after) {
  std::vector<Finding> findings;
  for (const NodeReport& report : after)
    for (const GpuReading& gpu : report.gpus.gpus)
      findings.push_back(finding_of("errors-at-work", judge(find_gpu(before, gpu.uuid), gpu),
                                    Scope::gpu, gpu.uuid, report.host,
                                    fmt::format("GPU {}", gpu.index)));
  return findings;
}

}  // namespace shakedown::node
