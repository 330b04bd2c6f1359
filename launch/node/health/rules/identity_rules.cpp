// Which GPU it is, and whether its peers are the same.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "launch/node/health/rules/gpu_rules.hpp"

namespace shakedown::node {
namespace {

/// Which model most GPUs of the job are; a node may have one card of another kind by mistake.
Judgement judge_model(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.model.empty()) return not_known("the model is not reported");
  std::vector<std::string> models;
  for (const GpuReading* other : context.all)
    if (!other->model.empty()) models.push_back(other->model);
  const auto most = majority_of(models);
  if (std::ranges::count(models, gpu.model) == std::ssize(models) || most == gpu.model)
    return passed(gpu.model);
  return warning(Class::config,
                 most ? fmt::format("{}, most are {}", gpu.model, *most)
                      : fmt::format("{}; the job has several models", gpu.model),
                 "run on GPUs of one model");
}

Judgement judge_identity(const GpuReading& gpu, const GpuContext&) {
  std::vector<const char*> missing;
  if (gpu.model.empty()) missing.push_back("model");
  if (gpu.uuid.empty()) missing.push_back("UUID");
  if (gpu.pci_id.empty()) missing.push_back("PCI id");
  if (gpu.serial.empty()) missing.push_back("serial");
  if (gpu.vbios.empty()) missing.push_back("VBIOS");
  if (!missing.empty()) return not_known(fmt::format("not reported: {}", fmt::join(missing, ", ")));
  return passed("model, UUID, PCI id, serial and VBIOS are known");
}

/// Two nodes that report one GPU: a cloned image, or one node counted twice.
Judgement judge_unique(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.uuid.empty()) return not_known("UUID is not reported");
  int same = 0;
  for (const GpuReading* peer : context.peers) same += peer->uuid == gpu.uuid;
  if (same <= 1) return passed("no other GPU has its UUID");
  return failure(Class::infrastructure, fmt::format("{} GPUs of this job have its UUID", same),
                 "inspect the host names: one node may be in the job twice");
}

Judgement judge_vbios(const GpuReading& gpu, const GpuContext& context) {
  if (gpu.vbios.empty()) return not_known("VBIOS is not reported");
  std::vector<std::string> known;
  bool differs = false;
  for (const GpuReading* peer : context.peers) {
    if (peer->vbios.empty()) continue;
    known.push_back(peer->vbios);
    differs |= peer->vbios != gpu.vbios;
  }
  const auto most = majority_of(known);
  if (!differs || most == gpu.vbios) return passed(fmt::format("VBIOS {}", gpu.vbios));
  if (!most)
    return warning(Class::config, fmt::format("VBIOS {}; others of this model differ", gpu.vbios),
                   "reconfigure the GPUs of one model to the same VBIOS");
  return warning(Class::config, fmt::format("VBIOS {}, {} on most of this model", gpu.vbios, *most),
                 fmt::format("reconfigure the VBIOS to {}", *most));
}

Judgement judge_memory_size(const GpuReading& gpu, const GpuContext& context) {
  if (!gpu.memory_total_bytes) return not_known("memory size is not reported");
  const double size = static_cast<double>(*gpu.memory_total_bytes);
  const auto most = context.majority(&GpuReading::memory_total_bytes);
  if (most && size < 0.99 * static_cast<double>(*most))
    return failure(Class::hardware,
                   fmt::format("{:.0f} MiB of memory, {:.0f} MiB on most of this model",
                               size / 0x1p20, static_cast<double>(*most) / 0x1p20),
                   "reset GPU; RMA if it comes back");
  return passed(fmt::format("{:.0f} GiB of memory", size / 0x1p30));
}

}  // namespace

std::vector<GpuRule> identity_rules() {
  return {{"gpu-model", "model, by the majority of the job", judge_model},
          {"gpu-identity", "model, UUID, PCI id, serial, VBIOS", judge_identity},
          {"gpu-unique", "GPUs of the job that have the same UUID", judge_unique},
          {"vbios", "VBIOS, by the majority of the model", judge_vbios},
          {"gpu-memory-size", "size of memory, by the majority of the model", judge_memory_size}};
}

}  // namespace shakedown::node
