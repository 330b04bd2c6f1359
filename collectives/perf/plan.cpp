#include "collectives/perf/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::collectives {
namespace {

/// nccl-tests goes by the factor where it is above 1. Sets sizes, max_bytes, step and by_factor.
void plan_sizes(const PerfOptions& options, bool prefer_step, Plan& plan) {
  const std::size_t least = parse_bytes("--min-bytes", options.min_bytes);
  plan.max_bytes = parse_bytes("--max-bytes", options.max_bytes);
  plan.by_factor = options.step_factor > 1 && !prefer_step;
  plan.step = plan.by_factor ? static_cast<std::size_t>(options.step_factor)
                             : parse_bytes("--step-bytes", options.step_bytes);
  if (least > plan.max_bytes)
    throw UsageError(fmt::format("--min-bytes {}: must not exceed --max-bytes {}",
                                 options.min_bytes, options.max_bytes));
  if (plan.step == 0) throw UsageError("--step-bytes 0: must be at least 1");
  if (plan.by_factor && least == 0 && plan.max_bytes > 0)
    throw UsageError(
        "--min-bytes 0 cannot be used with --step-factor; start at 1 or use --step-bytes");
  for (std::size_t size = least; size <= plan.max_bytes;
       size = plan.by_factor ? size * plan.step : size + plan.step) {
    plan.sizes.push_back(size);
    if (size == 0 && plan.by_factor) break;
  }
}

InjectedFault parse_fault(const std::string& text, int ranks) {
  InjectedFault fault;
  if (text.empty()) return fault;
  char rest = 0;
  const int read = std::sscanf(text.c_str(), "%d:%ld:%zu:%d%c", &fault.rank, &fault.iteration,
                               &fault.index, &fault.bit, &rest);
  if (read < 2 || read > 4 || fault.rank < 0 || fault.rank >= ranks)
    throw UsageError(fmt::format("--inject-fault {}: must be RANK:ITERATION[:INDEX[:BIT]]", text));
  return fault;
}

/// Every type, or all of them where one is "all".
std::vector<DataType> parse_types(const std::vector<std::string>& names) {
  std::vector<DataType> types;
  for (const std::string& name : names) {
    if (name == "all") return all_data_types();
    types.push_back(parse_data_type("--dtype", name));
  }
  return types;
}

/// Throws UsageError naming the choices, which are numbered from 0.
void check_choice(const char* option, int value, const std::vector<const char*>& choices) {
  if (value < static_cast<int>(choices.size())) return;
  std::vector<std::string> known;
  for (const char* choice : choices) known.push_back(fmt::format("{} ({})", known.size(), choice));
  throw UsageError(fmt::format("{} {}: must be one of {}", option, value, fmt::join(known, ", ")));
}

/// A rank is one process with one GPU.
void check_ranks(const PerfOptions& options, int world_size) {
  if (options.threads > 1)
    throw UsageError(fmt::format("--nthreads {}: must be 1; start more ranks: launch/mpi -n {} {}",
                                 options.threads, options.threads * options.gpus * world_size,
                                 options.program));
  if (options.gpus > 1)
    throw UsageError(fmt::format(
        "--ngpus {}: a rank has one GPU: launch/mpi -n {} {} (or, without MPI, {} -g {})",
        options.gpus, options.gpus * world_size, options.program, options.program, options.gpus));
  if (options.root >= world_size)
    throw UsageError(fmt::format("--root {}: no such rank (this job has ranks 0 to {})",
                                 options.root, world_size - 1));
}

}  // namespace

Plan plan_of(const PerfOptions& options, const OptionSet& given) {
  PerfOptions o = options;
  if (o.quick) {
    if (!given.given("--operation"))
      o.operations = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
    if (!given.given("--min-bytes")) o.min_bytes = "1M";
    if (!given.given("--max-bytes")) o.max_bytes = "64M";
    if (!given.given("--step-factor")) o.step_factor = 4;
  }
  Plan plan;
  for (const std::string& name : o.operations) plan.operations.push_back(&find_operation(name));
  for (const std::string& name : o.reductions)
    plan.reductions.push_back(parse_reduction("--reduction", name));
  plan.types = parse_types(o.types);
  plan_sizes(o, given.given("--step-bytes") && !given.given("--step-factor"), plan);
  check_choice("--blocking", o.blocking, {"none", "wait, barrier", "wait", "untimed barrier"});
  check_choice("--average", o.average, {"rank 0", "mean", "min", "max"});
  check_choice("--register", o.registration, {"none", "registered", "symmetric windows"});
  if (o.graph > 0 && (o.one_by_one != 0 || o.blocking != 0))
    throw UsageError(fmt::format("--cuda-graph {} cannot be combined with {}", o.graph,
                                 o.blocking != 0 ? "--blocking" : "--one-by-one"));

  plan.bench.iterations = o.iterations;
  plan.bench.warmup = o.warmup;
  plan.bench.repeats = o.graph > 0 ? o.graph : o.repeats;
  plan.bench.aggregate = o.aggregate;
  plan.bench.one_by_one = o.one_by_one != 0;
  plan.bench.graph = o.graph > 0;
  plan.bench.check = o.check > 0;
  plan.bench.average = static_cast<Average>(o.average);
  plan.bench.blocking = static_cast<Blocking>(o.blocking);
  plan.bench.registration = static_cast<Registration>(o.registration);
  return plan;
}

Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size) {
  Plan plan = plan_of(options, given);
  check_ranks(options, world_size);
  plan.bench.fault = parse_fault(options.inject_fault, world_size);
  plan.bench.delay = parse_delay(options.inject_delay, world_size);
  return plan;
}

std::vector<Trial> rows_of(const Operation& operation, const Plan& plan, const PerfOptions& options,
                           int ranks) {
  std::vector<int> roots{options.root};
  if (options.root < 0) {
    roots.clear();
    for (int r = 0; r < ranks; ++r) roots.push_back(r);
  }
  if (!operation.rooted) roots = {-1};
  std::vector<Reduction> reductions{Reduction::sum};
  if (operation.reduces) reductions = plan.reductions;

  std::vector<Trial> rows;
  for (DataType type : plan.types) {
    const std::size_t align =
        std::max<std::size_t>(1, static_cast<std::size_t>(options.align) / size_of(type));
    for (Reduction reduction : reductions)
      for (int root : roots)
        for (std::size_t size : plan.sizes)
          rows.push_back(
              {&operation, type, reduction, root,
               operation.counts(size / size_of(type), static_cast<std::size_t>(ranks), align),
               false, size});
  }
  return rows;
}

}  // namespace shakedown::collectives
