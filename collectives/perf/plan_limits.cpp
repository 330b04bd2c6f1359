#include "collectives/perf/plan_limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "common/error.hpp"
#include "common/types.hpp"

namespace shakedown::collectives {

Communicator& choose_transport(const std::string& transport, Backend& backend) {
  if (transport == "mpi") return *backend.host;
  if (transport == "nccl" && std::string(backend.world->transport()) != "nccl")
    throw UsageError("--transport nccl: NCCL runs on GPUs, the backend is cpu");
  return *backend.world;
}

void check_transport(const PerfOptions& options, const Plan& plan,
                     const Communicator& communicator) {
  if (!is_mpi(communicator)) {
    if (options.backend.mpi_algorithm == "own")
      throw UsageError("--mpi-algorithm own needs --transport mpi, the transport is nccl");
    return;
  }
  if (options.graph > 0)
    throw UsageError("--cuda-graph needs --transport nccl: MPI operations cannot be captured");
  if (options.registration != 0)
    throw UsageError("--register registers buffers with NCCL and needs --transport nccl");
  if (options.path) throw UsageError("--path reads NCCL's log and needs --transport nccl");
  std::size_t width = 8;
  for (DataType type : plan.types) width = std::min(width, size_of(type));
  if (plan.sizes.back() / width > INT_MAX)
    throw UsageError(
        fmt::format("--max-bytes {}: MPI counts up to {} elements", options.max_bytes, INT_MAX));
}

void limit_types(Plan& plan, const PerfOptions& options, const Communicator& communicator,
                 const Backend& backend, const MpiSession& session) {
  const bool all = std::count(options.types.begin(), options.types.end(), "all") > 0;
  std::vector<DataType> types;
  for (DataType type : plan.types) {
    const auto supporting = session.all_gather(communicator.supports(type) ? 1.0 : 0.0);
    const auto lacking = std::find(supporting.begin(), supporting.end(), 0.0);  // GPUs may differ
    if (lacking == supporting.end()) types.push_back(type);
    if (lacking == supporting.end() || all) continue;
    const auto rank = static_cast<std::size_t>(lacking - supporting.begin());
    throw UsageError(fmt::format(
        "--dtype {}: not supported by {} on rank {} on {}{}", name_of(type),
        backend.kind == BackendKind::cpu ? "the cpu backend" : communicator.transport(), rank,
        session.hosts()[rank],
        is_float8(type) ? " (8-bit floats need compute capability 9.0 and NCCL 2.24)" : ""));
  }
  plan.types = types;
}

std::string limit_sizes(Plan& plan, std::size_t most) {
  if (plan.sizes.back() <= most) return "";
  if (plan.sizes.front() > most) plan.sizes = {most};
  while (plan.sizes.back() > most) plan.sizes.pop_back();
  plan.max_bytes = plan.sizes.back();
  return fmt::format("#\n# Reducing maxBytes to {} due to memory limitation", plan.max_bytes);
}

}  // namespace shakedown::collectives
