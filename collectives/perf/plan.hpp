// The plan of a sweep: operations, types, reductions, roots and sizes, and how each row is
// measured. A pure function of the options; what transport, devices and memory allow of it is
// plan_limits.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/injection.hpp"
#include "collectives/operation.hpp"
#include "collectives/perf/bench.hpp"
#include "collectives/perf/perf_options.hpp"

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
  std::size_t align_bytes = 1;  // of each rank's part of a divided buffer
  BenchSettings bench;
  Injection injection;
};

/// The part that does not depend on the ranks, checked before MPI starts. Throws UsageError naming
/// the option.
Plan plan_of(const PerfOptions& options, const OptionSet& given);
/// The same with what does: roots, and faults for tests.
Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size);

/// An operation's rows, out of place.
std::vector<Trial> rows_of(const Operation& operation, const Plan& plan, int ranks);

}  // namespace shakedown::collectives
