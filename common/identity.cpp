#include "common/identity.hpp"

#include <array>
#include <cstdlib>
#include <ctime>
#include <variant>

#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/proc.hpp"
#include "git_revision.hpp"

namespace shakedown {
namespace {

// What bears on a measurement; nothing else of the environment is ever recorded.
constexpr std::array kRecordedVariables{
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",   "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE", "NCCL_ALGO",           "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",     "NCCL_P2P_DISABLE",    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",     "NCCL_IB_DISABLE",     "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",   "NCCL_MIN_NCHANNELS",  "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",        "NCCL_MAX_CTAS",       "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",        "NCCL_CUMEM_ENABLE",   "NCCL_NET",
    "NCCL_DEBUG",           "OMP_NUM_THREADS",     "OMP_PROC_BIND",
    "SLURM_JOB_ID",         "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST",
    "SLURM_NTASKS"};

}  // namespace

std::string git_revision() { return SHAKEDOWN_GIT_REVISION; }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

double peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:", kUnknown); }

Json describe_run(const OptionSet& options, const MpiSession& session, const Backend& backend) {
  const DeviceIdentity device = backend.device->identity();
  const bool gpu = backend.kind == BackendKind::gpu;
  Json run;
  run["program"] = options.program();
  run["started"] = utc_now();
  run["host"] = session.hosts().front();
  run["hosts"] = session.hosts();
  run["git_revision"] = git_revision();
  run["backend"] = name_of(backend.kind);
  run["world_size"] = session.world_size();
  run["transport"] = backend.world->transport();
  run["gpu"] = gpu ? device.model : "";
  run["processor"] = gpu ? "" : device.model;
  if (gpu) {
    run["gpu_uuids"] = session.all_gather(device.uuid);
    run["gpu_pci_ids"] = session.all_gather(device.pci_id);
  }
  run["compute_threads"] = session.all_gather(device.compute_threads);
  const auto nvml = Nvml::open();
  run["driver"] = nvml ? nvml->driver_version() : "";

  run["versions.mpi_built"] = MpiSession::build_version();
  run["versions.mpi"] = MpiSession::library_version();
  for (const LibraryVersion& version : library_versions(backend.kind)) {
    run["versions." + version.name + "_built"] = version.built;
    run["versions." + version.name] = version.running;
  }
  for (const OptionValue& option : options.values())
    std::visit([&](const auto& value) { run["options." + option.name] = value; }, option.value);
  for (const char* name : kRecordedVariables)
    if (const char* value = std::getenv(name)) run[std::string("environment.") + name] = value;
  return run;
}

}  // namespace shakedown
