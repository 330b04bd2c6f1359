// What bin/collective_perf measures: operations, types, sizes and roots, from its options.
#pragma once

#include <vector>

#include "collectives/perf/bench.hpp"
#include "collectives/perf/perf_options.hpp"

namespace shakedown::collectives {

struct Plan {
  std::vector<const Operation*> operations;
  std::vector<DataType> types;
  std::vector<Reduction> reductions;
  std::vector<std::size_t> sizes;  // bytes
  std::size_t max_bytes = 0;       // as requested, or what memory allows
  std::size_t step = 0;            // a factor, or bytes
  bool by_factor = true;
  BenchSettings bench;
};
/// What the options say, on any number of ranks. Throws UsageError naming the option.
Plan plan_of(const PerfOptions& options, const OptionSet& given);
/// The same for this many ranks, with the faults for tests.
Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size);

std::vector<Trial> rows_of(const Operation& operation, const Plan& plan, const PerfOptions& options,
                           int ranks);

}  // namespace shakedown::collectives
