#include "common/identity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>
#include <vector>

#include "common/host.hpp"
#include "common/mpi_session.hpp"
#include "common/nvml.hpp"
#include "common/options.hpp"
#include "common/program.hpp"

namespace shakedown {
namespace {

// What bears on a measurement; nothing else of the environment is ever recorded. Of Open MPI's
// parameters those of the transports: mpirun sets others itself, with keys and addresses. So it is
// of Intel MPI; of PRRTE those that place and bind the ranks.
constexpr const char* kRecordedPrefixes[] = {
    "NCCL_",         "UCX_",           "UCC_",           "FI_",
    "OFI_",          "RDMAV_",         "HCOLL_",         "SHARP_",
    "NVSHMEM_",      "OMPI_MCA_btl",   "OMPI_MCA_coll",  "OMPI_MCA_mpi_",
    "OMPI_MCA_mtl",  "OMPI_MCA_osc",   "OMPI_MCA_opal_", "OMPI_MCA_pml",
    "OMPI_MCA_smsc", "PRTE_MCA_hwloc", "PRTE_MCA_rmaps", "MPICH_",
    "MPIR_CVAR_",    "I_MPI_ADJUST",   "I_MPI_ASYNC",    "I_MPI_FABRICS",
    "I_MPI_OFFLOAD", "I_MPI_OFI",      "I_MPI_PIN",      "I_MPI_SHM",
    "I_MPI_THREAD",  "I_MPI_WAIT"};
constexpr const char* kRecordedVariables[] = {
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",   "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",      "OMP_PROC_BIND",       "OMP_PLACES",
    "SLURM_JOB_ID",         "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST",
    "SLURM_NTASKS",         "SLURM_ARRAY_JOB_ID",  "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",  "LOADEDMODULES"};

bool is_recorded(std::string_view name) {
  return std::ranges::find(kRecordedVariables, name) != std::end(kRecordedVariables) ||
         std::ranges::any_of(kRecordedPrefixes,
                             [&](const char* prefix) { return name.starts_with(prefix); });
}

/// Rank 0's; where ranks differ each one's too, and a line for people says on which hosts.
/// Collective.
void add_versions(Json& run, BackendKind kind, const MpiSession& session) {
  const auto nvml = Nvml::open();
  Versions mine{{"git_revision", git_revision()},
                {"driver", nvml ? nvml->driver_version() : ""},
                {"versions.mpi_built", MpiSession::build_version()},
                {"versions.mpi", MpiSession::library_version()}};
  for (const LibraryVersion& version : library_versions(kind)) {
    mine.emplace_back("versions." + version.name, version.running);
    mine.emplace_back("versions." + version.name + "_built", version.built);
  }
  for (const auto& [name, version] : mine) run[name] = version;
  std::vector<Versions> by_rank;
  for (const std::string& text : session.all_gather(json_text(Json(mine))))
    by_rank.push_back(Json::parse(text).get<Versions>());
  const std::string differences = differing_versions(session.hosts(), by_rank);
  if (differences.empty()) return;
  say(session, differences);
  for (const Versions& versions : by_rank) {
    std::vector<std::string> texts;
    for (const auto& [name, version] : versions) texts.push_back(name + " " + version);
    run["versions_by_rank"].push_back(fmt::format("{}", fmt::join(texts, ", ")));
  }
}

}  // namespace

double peak_resident_bytes() { return proc_bytes("/proc/self/status", "VmHWM:", kUnknown); }

Json describe_run(const OptionSet& options, const MpiSession& session, const Backend& backend) {
  const DeviceIdentity device = backend.device->identity();
  const bool gpu = backend.kind == BackendKind::gpu;
  Json run = describe_process(options, session.hosts(), session.boot_ids());
  run["backend"] = name_of(backend.kind);
  run["transport"] = backend.world->transport();
  run["gpu"] = gpu ? device.model : "";
  run["processor"] = gpu ? "" : device.model;
  if (gpu) {
    run["gpu_uuids"] = session.all_gather(device.uuid);
    run["gpu_pci_ids"] = session.all_gather(device.pci_id);
  }
  run["compute_threads"] = session.all_gather(device.compute_threads);
  add_versions(run, backend.kind, session);
  return run;
}

Json describe_process(const OptionSet& options, const std::vector<std::string>& hosts,
                      const std::vector<std::string>& boot_ids) {
  Json run;
  run["program"] = options.program();
  run["started"] = utc_now();
  run["host"] = hosts.front();
  run["hosts"] = hosts;
  run["boot_ids"] = boot_ids;
  run["git_revision"] = git_revision();
  run["world_size"] = hosts.size();
  run["versions.mpi_built"] = MpiSession::build_version();
  run["versions.mpi"] = MpiSession::library_version();
  for (const OptionValue& option : options.values())
    std::visit([&](const auto& value) { run["options." + option.name] = value; }, option.value);
  run.update(recorded_environment(environ));
  return run;
}

Json recorded_environment(const char* const* environment) {
  Json fields = Json::object();
  for (; *environment != nullptr; ++environment) {
    const std::string_view variable = *environment;
    const auto equals = variable.find('=');
    if (equals == std::string_view::npos || !is_recorded(variable.substr(0, equals))) continue;
    fields[fmt::format("environment.{}", variable.substr(0, equals))] = variable.substr(equals + 1);
  }
  return fields;
}

}  // namespace shakedown
