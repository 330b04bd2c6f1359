#include "collectives/perf/options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "collectives/operations.hpp"
#include "common/options.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives {

std::vector<IgnoredOption> ignored_options() {
  return {
      {"--parallel-init,-p", "each rank is a process, so all start in parallel", "1"},
      {"--stream-null,-y", "the null stream is not used"},
      {"--device-implementation,-D", "nccl-tests' own kernels are not measured"},
      {"--device-cta-count,-V", "nccl-tests' own kernels are not measured; --ctas sets NCCL's",
       "16"},
      {"--unalign,-u", "--align 1 divides buffers at odd addresses"},
  };
}

PerfOptions default_options(const std::string& program) {
  PerfOptions options;
  options.backend.ctas_option = "--ctas";
  for (const Operation& operation : operations()) {
    // NVIDIA's containers have the programs under names with a suffix: all_reduce_perf_mpi.
    if (program != operation.program_name &&
        !program.starts_with(operation.program_name + std::string("_")))
      continue;
    options.program = operation.program_name;
    options.operations = {operation.name};
    options.min_bytes = options.max_bytes = "32M";
    options.step_factor = 1;
    options.warmup = 1;
    options.repeats = 1;
  }
  return options;
}

namespace {

void declare_options(OptionSet& options, BarOptions& values) {
  options
      .add("--min-busbw", values.min_busbw_gbs,
           "lowest busbw of each operation's largest size; 0: no bar")
      .at_least(0)
      .metavar("GB/S");
  options
      .add("--max-latency", values.max_latency_us,
           "longest time of each operation's smallest size; 0: no bar")
      .at_least(0)
      .metavar("US");
}

void declare_what(OptionSet& options, PerfOptions& values) {
  options.heading("What is measured");
  if (!values.as_nccl_tests()) {
    std::vector<std::string> names;
    for (const Operation& operation : operations()) names.emplace_back(operation.name);
    options.add("--operation,--operations", values.operations, "list of operations, or all")
        .one_of(names);
    options.add("--quick", values.quick,
                "measure all_reduce, all_gather, reduce_scatter, broadcast at 1, 4, 16, 64 MiB");
  }
  std::vector<std::string> reductions;
  for (Reduction reduction : all_reductions()) reductions.emplace_back(name_of(reduction));
  options.add("--reduction,--op,-o", values.reductions, "list of reductions, or all")
      .one_of(reductions);
  options.add("--dtype,--datatype,-d", values.types,
              "list of types: float64 (double), float32 (float), float16 (half), bfloat16, "
              "float8_e4m3, float8_e5m2, int64, int32, int8, uint64, uint32, uint8, or all");
  options.add("--min-bytes,--minbytes,-b", values.min_bytes, "smallest size: 8, 64K, 1.5M, 4G")
      .metavar("SIZE");
  options.add("--max-bytes,--maxbytes,-e", values.max_bytes, "largest size").metavar("SIZE");
  options
      .add("--step-factor,--stepfactor,-f", values.step_factor,
           "multiply the size by this from row to row; 1: add --step-bytes")
      .at_least(1);
  options
      .add("--step-bytes,--stepbytes,-i", values.step_bytes,
           "add this to the size from row to row, with --step-factor 1")
      .metavar("SIZE");
  options.add("--align", values.align, "alignment of each rank's part of a divided buffer")
      .at_least(1)
      .metavar("BYTES");
  options
      .add("--root,-r", values.root,
           "root of rooted operations; all or -1: every rank, one after the other")
      .metavar("RANK");
  options
      .add("--transport", values.transport,
           "auto: NCCL on GPUs, else MPI; mpi: host memory on every backend")
      .one_of({"auto", "nccl", "mpi"});
  options
      .add("--mpi-algorithm", values.backend.mpi_algorithm,
           "all_reduce and reduce_scatter over MPI. library: the MPI library's algorithms; own: "
           "Shakedown's pipelined exchange of large buffers, as training uses")
      .one_of({"library", "own"});
  declare_options(options, values.backend);
}

void declare_how(OptionSet& options, PerfOptions& values) {
  options.heading("How it is measured");
  options
      .add("--iterations,--iters,-n", values.iterations,
           "operations per sample, issued back to back")
      .at_least(1);
  options
      .add("--warmup,--warmup-iters,-w", values.warmup,
           "untimed operations of each size, before the timed ones")
      .at_least(0);
  options.add("--repeats", values.repeats, "samples per row").at_least(1);
  options.add("--agg-iters,-m", values.aggregate, "operations grouped into one iteration")
      .at_least(1);
  options
      .add("--one-by-one,--per-iter-timing,-I", values.one_by_one,
           "1: time each iteration by events, and separate waiting from transfer")
      .at_least(0);
  options
      .add("--per-iter-skip,-K", values.skip,
           "first iterations that the statistics of --one-by-one leave out")
      .at_least(0);
  options
      .add("--cta-policy,-x", values.cta_policy,
           "NCCL's choice of CTAs (sets NCCL_CTA_POLICY). 0: default, 1: efficiency, 2: zero")
      .at_least(0)
      .default_text("NCCL's");
  options
      .add("--cuda-graph,--cudagraph,-G", values.graph,
           "samples, each launched as a CUDA graph; 0: no graphs")
      .at_least(0);
  options
      .add("--blocking,-z", values.blocking,
           "after each iteration 1: wait, barrier; 2: wait; 3: wait, barrier not timed")
      .at_least(0);
  options
      .add("--average,-a", values.average,
           "time that is reported: 0: rank 0's; 1: mean, 2: minimum, 3: maximum over ranks")
      .at_least(0);
  options.add("--check,-c", values.check, "0: skip the verification of results").at_least(0);
  options
      .add("--register,--local-register,-R", values.registration,
           "buffers with NCCL 1: registered; 2: in symmetric windows")
      .at_least(0);
  options
      .add("--ctas,--comm-ctas", values.backend.ctas,
           "CTAs per NCCL kernel (NCCL_MIN_CTAS and NCCL_MAX_CTAS); 0: NCCL's default")
      .at_least(0);
  options.add(
      "--path", values.path,
      "print the algorithm, protocol, channels and transports that NCCL uses; adds to its latency");
  options.add("--run-cycles,-N", values.cycles, "runs of the whole sweep; 0: until stopped")
      .at_least(0);
  options.add("--ngpus,-g", values.gpus, "number of ranks to start, without MPI").at_least(1);
  options
      .add("--nthreads,-t", values.threads, "as many times the ranks of --ngpus, as in nccl-tests")
      .at_least(1);
}

void declare_results(OptionSet& options, PerfOptions& values) {
  options.heading("Results");
  options
      .add("--report-cputime,-C", values.cputime,
           "1: print the time to enqueue in place of the time to complete")
      .at_least(0);
  options.add("--report-timestamps,-S", values.timestamps, "1: append a timestamp to each row")
      .at_least(0);
  options.add("--memory,-M", values.memory, "1: print the GPU memory that was taken, and by what")
      .at_least(0);
  options.add("--output-file,-J", values.json, "JSON file in nccl-tests' format").metavar("FILE");
  options.refuse("--csv", kCsvOfReport);
  options.add("--record", values.record, ".jsonl file to which the results are appended")
      .metavar("FILE");
  declare_options(options, values.bars);
  judge::declare_options(options, values.judge);
  options.refuse("--tolerance",
                 R"(--limits FILE with [{"metric": "collective/*", "floor": 0.05}] does it)");
}

void declare_hidden(OptionSet& options, PerfOptions& values) {
  options.heading("");
  for (IgnoredOption& ignored : values.ignored)
    options.add(ignored.names, ignored.value, ignored.reason);
}

}  // namespace

void declare_options(OptionSet& options, PerfOptions& values) {
  declare_what(options, values);
  declare_how(options, values);
  declare_results(options, values);
  declare_hidden(options, values);
}

namespace {

/// The value that `is_named`, else a UsageError that lists all names.
template <class Value, class IsNamed>
Value find(const std::string& option, const std::string& name, const std::vector<Value>& values,
           IsNamed&& is_named) {
  std::vector<std::string> known;
  for (Value value : values) {
    if (is_named(value)) return value;
    known.emplace_back(name_of(value));
  }
  throw UsageError(
      fmt::format("{} {}: must be one of {}, all", option, name, fmt::join(known, ", ")));
}

}  // namespace

const char* nccl_tests_name_of(DataType type) {
  switch (type) {
    case DataType::float64: return "double";
    case DataType::float32: return "float";
    case DataType::float16: return "half";
    case DataType::float8_e4m3: return "f8e4m3";
    case DataType::float8_e5m2: return "f8e5m2";
    default: return name_of(type);
  }
}

DataType parse_data_type(const std::string& option, const std::string& name) {
  return find(option, name, all_data_types(), [&](DataType type) {
    return name == name_of(type) || name == nccl_tests_name_of(type);
  });
}

Reduction parse_reduction(const std::string& option, const std::string& name) {
  return find(option, name, all_reductions(),
              [&](Reduction reduction) { return name == name_of(reduction); });
}

int nccl_version_code(const std::string& version) {
  int major = 0;
  int minor = 0;
  int patch = 0;
  std::sscanf(version.c_str(), "%d.%d.%d", &major, &minor, &patch);
  return major * 10000 + minor * 100 + patch;
}

std::string nccl_tests_device(const std::string& pci_id) {
  return pci_id.empty() ? "cpu" : pci_id.substr(0, pci_id.find('.'));
}

}  // namespace shakedown::collectives
