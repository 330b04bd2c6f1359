// What an operator sets on a GPU, and who else uses it.
#include <fmt/format.h>

#include <algorithm>

#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kIdleMemory_bytes = 15u << 20;  // gcm's limit

/// A switch that should be `right`. Another position is a warning; it is a failure where most peers
/// have the right one and it makes this GPU unlike them.
Judgement judge_switch(const GpuReading& gpu, const GpuContext& context,
                       Known<bool> GpuReading::*field, bool right, const std::string& what,
                       const std::string& action) {
  const Known<bool>& value = gpu.*field;
  if (!value) return not_known(fmt::format("{} is not reported", what));
  const std::string cause = fmt::format("{} is {}", what, *value ? "on" : "off");
  if (*value == right) return passed(cause);
  if (context.majority(field) == right)
    return failure(Class::config, cause + ", unlike that of most peers", action);
  return warning(Class::config, cause, action);
}

Judgement judge_persistence(const GpuReading& gpu, const GpuContext& context) {
  // It costs seconds at the start of a job, and nothing after.
  return at_most_warning(
      judge_switch(gpu, context, &GpuReading::persistence, true, "persistence mode",
                   "reconfigure: start nvidia-persistenced, or " + nvidia_smi(gpu) + " -pm 1"));
}

Judgement judge_ecc_mode(const GpuReading& gpu, const GpuContext& context) {
  return judge_switch(gpu, context, &GpuReading::ecc_enabled, true, "ECC",
                      "reconfigure: " + nvidia_smi(gpu) + " -e 1, then reset GPU");
}

Judgement judge_mig(const GpuReading& gpu, const GpuContext& context) {
  // Nodes where some GPUs are divided are set up so, and the others are none the slower.
  return at_most_warning(judge_switch(gpu, context, &GpuReading::mig_enabled, false, "MIG",
                                      "reconfigure: " + nvidia_smi(gpu) +
                                          " -mig 0, then reset GPU; nothing to do if "
                                          "the GPU is divided on purpose"));
}

Judgement judge_compute_mode(const GpuReading& gpu, const GpuContext&) {
  if (!gpu.compute_mode) return not_known("compute mode is not reported");
  const std::string cause = "compute mode " + *gpu.compute_mode;
  const std::string action = "reconfigure: " + nvidia_smi(gpu) + " -c 0";
  if (*gpu.compute_mode == "default") return passed(cause);
  if (*gpu.compute_mode == "prohibited")
    return failure(Class::config, cause + ": no program can use the GPU", action);
  return warning(Class::config, cause + ": one process at a time", action);
}

}  // namespace

std::vector<int> foreign_pids(const GpuReading& gpu, const std::vector<int>& our_pids) {
  std::vector<int> foreign;
  for (const ProcessReading& process : gpu.processes.value_or(std::vector<ProcessReading>{}))
    if (std::ranges::find(our_pids, process.pid) == our_pids.end()) foreign.push_back(process.pid);
  return foreign;
}

Judgement judge_foreign_use(const GpuReading& gpu, const GpuContext& context) {
  const std::vector<int> foreign = foreign_pids(gpu, context.our_pids);
  const bool ours = gpu.processes && gpu.processes->size() > foreign.size();
  const bool used = gpu.memory_used_bytes > kIdleMemory_bytes && !ours;
  if (!foreign.empty())
    return warning(Class::environment,
                   fmt::format("in use by other processes: pid {}", fmt::join(foreign, ", ")),
                   "end them, or run again when the GPU is free");
  if (used)
    return warning(
        Class::environment,
        fmt::format("{:.0f} MiB of memory in use, though no process of this job uses it",
                    static_cast<double>(*gpu.memory_used_bytes) / 0x1p20),
        "end the processes left over (fuser -v /dev/nvidia*), reset GPU if there are none");
  if (!gpu.processes) return not_known("processes are not reported");
  if (!gpu.memory_used_bytes) return not_known("memory in use is not reported");
  return passed("no other process uses it");
}

std::vector<GpuRule> setting_rules() {
  return {{"persistence", "persistence mode", judge_persistence},
          {"ecc-mode", "whether ECC is on", judge_ecc_mode},
          {"mig", "whether the GPU is divided by MIG", judge_mig},
          {"compute-mode", "who may use the GPU", judge_compute_mode},
          {"foreign-use", "processes of others, and memory in use without any", judge_foreign_use}};
}

}  // namespace shakedown::node
