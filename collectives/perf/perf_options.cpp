#include "collectives/perf/perf_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/error.hpp"
#include "common/options.hpp"

namespace shakedown::collectives {
namespace {

/// nccl-tests' options that mean nothing here: understood as long as they ask for nothing.
struct Refused {
  const char* names;
  const char* reason;
};
constexpr Refused kRefused[] = {
    {"--parallel-init,-p", "a rank is a process here, so all start in parallel"},
    {"--stream-null,-y", "the null stream is not used"},
    {"--cta-policy,-x", "set NCCL_CTA_POLICY, or --ctas"},
    {"--device-implementation,-D", "kernels of nccl-tests' own are not measured"},
    {"--device-cta-count,-V", "kernels of nccl-tests' own are not measured; --ctas sets NCCL's"},
    {"--memory,-M", "memory is not reported"},
    {"--unalign,-u", "--align 1 divides buffers at odd places"},
    {"--per-iter-skip,-K", "--record and -J have every iteration's time"},
};

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
    throw UsageError(fmt::format("--inject-fault {}: not RANK:ITERATION[:INDEX[:BIT]]", text));
  return fault;
}

/// Every name, or all of them where one is "all".
template <class Value, class Parse>
std::vector<Value> parse_list(const std::vector<std::string>& names, std::vector<Value> all,
                              Parse&& parse) {
  std::vector<Value> values;
  for (const std::string& name : names) {
    if (name == "all") return all;
    values.push_back(parse(name));
  }
  return values;
}

/// Throws UsageError naming the choices, which are numbered from 0.
void check_choice(const char* option, int value, const std::vector<const char*>& choices) {
  if (value < static_cast<int>(choices.size())) return;
  std::vector<std::string> known;
  for (const char* choice : choices) known.push_back(fmt::format("{} ({})", known.size(), choice));
  throw UsageError(fmt::format("{} {}: must be one of {}", option, value, fmt::join(known, ", ")));
}

void refuse_what_means_nothing(const PerfOptions& options, int world_size) {
  for (std::size_t i = 0; i < std::size(kRefused); ++i)
    if (!options.refused[i].empty() && options.refused[i] != "0")
      throw UsageError(fmt::format("{}: {}", kRefused[i].names, kRefused[i].reason));
  for (const char* name : {"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_DEVICE"})
    if (options.as_nccl_tests() && std::getenv(name) != nullptr)
      throw UsageError(
          fmt::format("{} is set: here all ranks are one group, and "
                      "CUDA_VISIBLE_DEVICES chooses the GPUs",
                      name));
  if (options.threads > 1)
    throw UsageError(fmt::format("--nthreads {}: a rank is a process here: launch/mpi -n {} {}",
                                 options.threads, options.threads * options.gpus * world_size,
                                 options.program));
  if (options.gpus > 1)
    throw UsageError(fmt::format(
        "--ngpus {}: a rank has one GPU: launch/mpi -n {} {} (or, without MPI, {} -g {})",
        options.gpus, options.gpus * world_size, options.program, options.program, options.gpus));
}

}  // namespace

PerfOptions default_options(const std::string& program) {
  PerfOptions options;
  for (const Operation& operation : operations()) {
    if (program != operation.program_name) continue;
    options.program = program;
    options.operations = {operation.name};
    options.min_bytes = options.max_bytes = "32M";
    options.step_factor = 1;
    options.warmup = 1;
    options.repeats = 1;
  }
  return options;
}

void declare_options(OptionSet& options, PerfOptions& values) {
  options.heading("What is measured");
  if (!values.as_nccl_tests()) {
    std::string names;
    for (const Operation& operation : operations()) names += std::string(operation.name) + ", ";
    options.add("--operation,--operations", values.operations, "list of: " + names + "or all");
    options.add("--quick", values.quick,
                "all_reduce, all_gather, reduce_scatter, broadcast at 1, 4, 16, 64 MiB");
  }
  options.add("--reduction,--op,-o", values.reductions,
              "list of: sum, prod, min, max, avg, or all");
  options.add("--dtype,--datatype,-d", values.types,
              "list of: float64 (double), float32 (float), float16 (half), bfloat16, float8_e4m3, "
              "float8_e5m2, int64, int32, int8, uint64, uint32, uint8, or all");
  options.add("--min-bytes,--minbytes,-b", values.min_bytes, "smallest size: 8, 64K, 1.5M, 4G");
  options.add("--max-bytes,--maxbytes,-e", values.max_bytes, "largest size");
  options
      .add("--step-factor,--stepfactor,-f", values.step_factor,
           "multiply the size by this from row to row (1: add --step-bytes)")
      .at_least(1);
  options.add("--step-bytes,--stepbytes,-i", values.step_bytes,
              "bytes to add to the size from row to row, where --step-factor is 1");
  options.add("--align", values.align, "alignment in bytes of each rank's part of a divided buffer")
      .at_least(1);
  options
      .add("--root,-r", values.root,
           "root of rooted operations; -1: every rank, one after the other")
      .at_least(-1);
  options
      .add("--transport", values.transport,
           "auto: NCCL on GPUs, else MPI; mpi: on host memory everywhere")
      .one_of({"auto", "nccl", "mpi"});
  options
      .add("--mpi-algorithm", values.backend.mpi_algorithm,
           "all_reduce and reduce_scatter over MPI. library: the MPI library's algorithms; own: "
           "Shakedown's pipelined exchange for large buffers, as training uses")
      .one_of({"library", "own"});
  declare_options(options, values.backend);

  options.heading("How");
  options
      .add("--iterations,--iters,-n", values.iterations,
           "operations per sample, issued back to back")
      .at_least(1);
  options
      .add("--warmup,--warmup-iters,-w", values.warmup,
           "untimed operations of each size, before the first is timed")
      .at_least(0);
  options.add("--repeats", values.repeats, "samples per row").at_least(1);
  options.add("--agg-iters,-m", values.aggregate, "operations grouped into one iteration")
      .at_least(1);
  options
      .add("--one-by-one,--per-iter-timing,-I", values.one_by_one,
           "1: time each iteration by events, and separate waiting from transfer")
      .at_least(0);
  options
      .add("--cuda-graph,--cudagraph,-G", values.graph,
           "samples, each launched as a CUDA graph; 0: no graphs")
      .at_least(0);
  options
      .add("--blocking,-z", values.blocking,
           "after each iteration 1: wait, barrier; 2: wait; 3: wait, barrier not timed")
      .at_least(0);
  options.add("--average,-a", values.average, "times over ranks: 0 rank 0, 1 mean, 2 min, 3 max")
      .at_least(0);
  options.add("--check,-c", values.check, "0: do not check results").at_least(0);
  options
      .add("--register,--local-register,-R", values.registration,
           "buffers 1: registered; 2: in symmetric windows")
      .at_least(0);
  options
      .add("--ctas,--comm-ctas", values.backend.ctas,
           "blocks NCCL's kernels may have; 0: as it likes")
      .at_least(0);
  options.add(
      "--path", values.path,
      "print which algorithm, protocol, channels and transports NCCL uses; adds to its latency");
  options.add("--run-cycles,-N", values.cycles, "runs of the whole sweep; 0: until stopped")
      .at_least(0);
  options.add("--ngpus,-g", values.gpus, "without MPI: start this many ranks by launch/mpi")
      .at_least(1);
  options.add("--nthreads,-t", values.threads, "only 1 is supported (compatibility)").at_least(1);

  options.heading("Results");
  options
      .add("--report-cputime,-C", values.cputime,
           "1: print the time to enqueue in place of the time to complete")
      .at_least(0);
  options.add("--report-timestamps,-S", values.timestamps, "1: append a timestamp to each row")
      .at_least(0);
  options.add("--output-file,-J", values.json, "write a .json file as nccl-tests does");
  options.add("--record", values.record, "append what is measured to this .jsonl file");
  declare_options(options, values.bars);
  options.heading("");
  values.refused.resize(std::size(kRefused));
  for (std::size_t i = 0; i < std::size(kRefused); ++i)
    options.add(kRefused[i].names, values.refused[i], kRefused[i].reason);
  options.add("--inject-fault", values.inject_fault, "RANK:ITERATION[:INDEX[:BIT]]");
  options.add("--inject-delay", values.inject_delay, "RANK:MICROSECONDS");
}

Plan make_plan(const PerfOptions& options, const OptionSet& given, int world_size) {
  refuse_what_means_nothing(options, world_size);
  PerfOptions o = options;
  if (o.quick) {
    if (!given.given("--operation"))
      o.operations = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
    if (!given.given("--min-bytes")) o.min_bytes = "1M";
    if (!given.given("--max-bytes")) o.max_bytes = "64M";
    if (!given.given("--step-factor")) o.step_factor = 4;
  }
  Plan plan;
  std::vector<const Operation*> all;
  for (const Operation& operation : operations()) all.push_back(&operation);
  plan.operations =
      parse_list(o.operations, all, [](const std::string& n) { return &find_operation(n); });
  plan.types = parse_list(o.types, all_data_types(),
                          [](const std::string& n) { return parse_data_type("--dtype", n); });
  plan.reductions = parse_list(o.reductions, all_reductions(), [](const std::string& n) {
    return parse_reduction("--reduction", n);
  });
  plan_sizes(o, given.given("--step-bytes") && !given.given("--step-factor"), plan);
  if (o.root >= world_size)
    throw UsageError(fmt::format("--root {}: no such rank (this job has ranks 0 to {})", o.root,
                                 world_size - 1));
  check_choice("--blocking", o.blocking, {"none", "wait, barrier", "wait", "untimed barrier"});
  check_choice("--average", o.average, {"rank 0", "mean", "min", "max"});
  check_choice("--register", o.registration, {"none", "registered", "symmetric windows"});
  if (o.graph > 0 && (o.one_by_one != 0 || o.blocking != 0))
    throw UsageError("--cuda-graph cannot be combined with --one-by-one or --blocking");

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
  plan.bench.fault = parse_fault(o.inject_fault, world_size);
  plan.bench.delay = parse_delay(o.inject_delay, world_size);
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
