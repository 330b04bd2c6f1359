// Libraries built against and loaded, variables, and what the kernel reported.
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "common/backend.hpp"
#include "common/mpi_session.hpp"
#include "common/version.hpp"
#include "launch/node/health/facts/host_facts.hpp"
#include "launch/node/health/facts/kernel_log.hpp"

namespace shakedown::node {
namespace {

Json read_revision(const FactSource&) { return git_revision(); }

/// "name" -> what is loaded now, "name_built" -> what this program was built against.
Json read_libraries(const FactSource&) {
  std::string mpi = MpiSession::library_version();
  if (const auto v = mpi.find(" v"); v != std::string::npos)
    mpi.erase(v + 1, 1);  // Open MPI v4.1.4
  Json versions{{"mpi", mpi}, {"mpi_built", MpiSession::build_version()}};
  for (const BackendKind kind : {BackendKind::gpu, BackendKind::cpu})
    for (const LibraryVersion& library : library_versions(kind)) {
      versions[library.name] = library.running;
      versions[library.name + "_built"] = library.built;
    }
  return versions;
}

Json read_cuda_variables(const FactSource& source) {
  Json found = Json::object();
  for (const char* name : {"CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                           "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE"})
    if (const std::string* value = source.variable(name)) found[name] = *value;
  return found;
}

/// What Slurm gave this job on this node.
Json read_slurm(const FactSource& source) {
  Json found = Json::object();
  for (const char* name :
       {"SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_CPUS_PER_TASK"})
    if (const std::string* value = source.variable(name)) found[name] = *value;
  return found;
}

Json read_kernel_messages(const FactSource& source) {
  const double uptime_s = std::strtod(source.line_of("/proc/uptime").c_str(), nullptr);
  const auto log = read_kernel_log(source.root + "/dev/kmsg", uptime_s);
  return log ? to_json(*log) : Json();
}

}  // namespace

std::vector<Fact> software_facts() {
  return {{"revision", true, read_revision},
          {"libraries", true, read_libraries},
          {"cuda_variables", false, read_cuda_variables},
          {"slurm", false, read_slurm},
          {kKernelLogFact, false, read_kernel_messages}};
}

}  // namespace shakedown::node
