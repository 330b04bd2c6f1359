#include "launch/node/health/rules/gpu_rules.hpp"

#include <fmt/format.h>

namespace shakedown::node {

std::vector<GpuRule> gpu_rules() {
  std::vector<GpuRule> all;
  for (const auto& group : {answer_rules(), identity_rules(), error_rules(), state_rules(),
                            setting_rules(), link_rules()})
    all.insert(all.end(), group.begin(), group.end());
  return all;
}

Finding finding_of_gpu(const std::string& check, const Judgement& judgement,
                       const std::string& host, const GpuReading& gpu) {
  const std::string subject = fmt::format("GPU {}", gpu.index);
  const std::string name = gpu.uuid.empty() ? fmt::format("{} {}", host, subject) : gpu.uuid;
  return finding_of(check, judgement, Scope::gpu, name, host, subject);
}

std::vector<Finding> judge_gpu(const std::string& host, const GpuReading& gpu,
                               const GpuContext& context) {
  std::vector<Finding> findings;
  for (const GpuRule& rule : gpu_rules()) {
    Judgement judgement = rule.judge(gpu, context);
    if (!gpu.stalled.empty() && judgement.outcome == Outcome::unknown)
      judgement = not_known("not read: an earlier call of the driver did not return");
    findings.push_back(finding_of_gpu(rule.name, judgement, host, gpu));
  }
  return findings;
}

std::string nvidia_smi(const GpuReading& gpu) {
  return fmt::format("nvidia-smi -i {}",
                     gpu.pci_id.empty() ? std::to_string(gpu.index) : gpu.pci_id);
}

}  // namespace shakedown::node
