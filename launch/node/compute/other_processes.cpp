#include "launch/node/compute/other_processes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

/// What `look` says of the GPU of this UUID; nothing where no node has it.
template <class Look>
std::string of_gpu(const std::vector<NodeReport>& reports, const std::string& uuid, Look&& look) {
  if (uuid.empty()) return "";
  for (const NodeReport& report : reports)
    for (const GpuReading& gpu : report.gpus.gpus)
      if (gpu.uuid == uuid) return look(gpu, report.our_pids);
  return "";
}

/// Memory in use without a process counts as well, above what a driver or a display holds: a
/// container may hide whose it is.
std::string use_before(const GpuReading& gpu, const std::vector<int>& our_pids) {
  constexpr std::uint64_t kHeldByNoJob = std::uint64_t{1} << 30;
  if (foreign_pids(gpu, our_pids).empty() && gpu.memory_used_bytes.value_or(0) < kHeldByNoJob)
    return "";
  GpuContext context;
  context.our_pids = our_pids;
  const Judgement use = judge_foreign_use(gpu, context);
  return use.outcome == Outcome::warn ? use.cause : "";
}

/// In a container the driver may know this job's processes by other numbers: `ranks` of those that
/// are listed are this job's then.
std::string use_now(const GpuReading& gpu, const std::vector<int>& our_pids, std::size_t ranks) {
  const std::vector<int> foreign = foreign_pids(gpu, our_pids);
  const bool knows_ours = gpu.processes && gpu.processes->size() > foreign.size();
  if (foreign.empty() || (!knows_ours && foreign.size() <= ranks)) return "";
  return fmt::format("in use by other processes: pid {}{}", fmt::join(foreign, ", "),
                     knows_ours ? "" : fmt::format(", {} of them this job's", ranks));
}

}  // namespace

std::vector<NodeReport> read_processes(const MpiSession& session) {
  ReportSource gpus_alone;
  gpus_alone.facts = false;
  return gather_reports(session, gpus_alone);
}

std::vector<std::string> used_by_others(const std::vector<std::string>& gpus,
                                        const std::vector<NodeReport>& before,
                                        const std::vector<NodeReport>& now) {
  std::vector<std::string> uses;
  for (const std::string& uuid : gpus) {
    const auto ranks = static_cast<std::size_t>(std::ranges::count(gpus, uuid));
    const std::string earlier = of_gpu(before, uuid, use_before);
    uses.push_back(!earlier.empty() ? earlier
                                    : of_gpu(now, uuid, [&](const auto& gpu, const auto& ours) {
                                        return use_now(gpu, ours, ranks);
                                      }));
  }
  return uses;
}

}  // namespace shakedown::node
