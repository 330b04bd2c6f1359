// The plan of a sweep: operations, types, reductions, roots and sizes, and how each row is
// measured. A pure function of the options; what transport, devices and memory allow of it is
// plan_limits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "collectives/operations.hpp"
#include "collectives/perf/bench.hpp"
#include "collectives/perf/options.hpp"
#include "common/backend.hpp"
#include "common/mpi_session.hpp"

namespace shakedown::collectives {

struct Plan {
  std::vector<const Operation*> operations;
  std::vector<DataType> types;
  std::vector<Reduction> reductions;
  std::vector<int> roots;          // of rooted operations
  std::vector<std::size_t> sizes;  // bytes
  std::size_t max_bytes = 0;       // as requested, or what memory allows
  std::size_t step = 0;            // a factor, or bytes
  bool by_factor = true;
  std::size_t align_bytes = 1;        // of each rank's part of a divided buffer
  std::vector<int> groups;            // of NCCL_TESTS_SPLIT, by rank; empty: all ranks are one
  std::string split;                  // that variable and its value
  std::vector<std::string> left_out;  // of what "all" of the operations or types names
  std::optional<double> min_mean_busbw_gbs = std::nullopt;  // NCCL_TESTS_MIN_BW
  BenchSettings bench;
};

/// The part that does not depend on the ranks, checked before MPI starts. Throws UsageError naming
/// the option.
Plan plan_of(const PerfOptions& options, const OptionSet& given);
/// The same with what does: groups and roots.
Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size);

/// An operation's rows, out of place.
std::vector<Trial> rows_of(const Operation& operation, const Plan& plan, int ranks);

// The part of a plan that transport, devices and memory allow.

/// The communicator that --transport names. Throws UsageError where there is none.
Communicator& choose_transport(const std::string& transport, Backend& backend);

/// Throws UsageError where the transport is MPI and does not support what is planned.
void check_transport(const PerfOptions& options, const Plan& plan,
                     const Communicator& communicator);

/// Leaves out types that a rank does not support where all were requested, else throws UsageError.
/// Collective.
void limit_types(Plan& plan, const PerfOptions& options, const Communicator& communicator,
                 const Backend& backend, const MpiSession& session);

/// As nccl-tests: leaves out sizes above `most` bytes. Returns its remark, or nothing.
std::string limit_sizes(Plan& plan, std::size_t most);

}  // namespace shakedown::collectives
