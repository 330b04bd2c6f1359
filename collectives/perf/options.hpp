// The options of bin/collective_perf: its own with its own defaults, or nccl-tests' under the names
// of nccl-tests' programs.
#pragma once

#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/judge/court.hpp"
#include "common/types.hpp"

namespace shakedown {

class OptionSet;

}  // namespace shakedown

namespace shakedown::collectives {

/// An option of nccl-tests that has no effect here: accepted as long as its value requests none
/// (0), or what is so here in any case.
struct IgnoredOption {
  const char* names;
  const char* reason;
  const char* fulfilled = "0";
  std::string value = "";
};
std::vector<IgnoredOption> ignored_options();

struct BarOptions {
  double min_busbw_gbs = 0;   // of each operation's largest size; 0: none
  double max_latency_us = 0;  // of each operation's smallest size; 0: none
};

struct PerfOptions {
  std::string program = "collective_perf";  // or one of nccl-tests' names
  std::vector<std::string> operations{"all_reduce"};
  std::vector<std::string> reductions{"sum"};
  std::vector<std::string> types{"float32"};
  std::string min_bytes = "8";
  std::string max_bytes = "128M";
  std::string step_bytes = "1M";
  int step_factor = 2;
  int align = 16;
  std::string root = "0";  // a rank, all, or -1, which is all
  bool quick = false;
  int iterations = 20;
  int warmup = 5;
  int repeats = 5;
  int aggregate = 1;
  int one_by_one = 0;
  int skip = 0;         // of the first iterations one by one
  int cta_policy = -1;  // of NCCL; -1: not set
  int graph = 0;
  int blocking = 0;
  int average = 1;
  int check = 1;
  int registration = 0;
  bool path = false;
  int cycles = 1;
  int cputime = 0;
  int timestamps = 0;
  int gpus = 1;
  int threads = 1;
  int memory = 0;
  std::string json;
  std::string transport = "auto";
  std::string record;
  BarOptions bars;
  judge::JudgeOptions judge;
  BackendOptions backend{.mpi_algorithm = "library"};
  std::vector<IgnoredOption> ignored = ignored_options();

  int ranks_of_process() const { return gpus * threads; }
  bool as_nccl_tests() const { return program != "collective_perf"; }
  /// Whether rates are judged: nccl-tests judges none.
  bool judges() const {
    return !as_nccl_tests() || !judge.reference.empty() || !judge.limits.empty();
  }
};

/// The defaults under the name by which the program was started.
PerfOptions default_options(const std::string& program);
void declare_options(OptionSet& options, PerfOptions& values);

// Types, reductions and versions by name: Shakedown's own, and those of nccl-tests.

/// "float" for float32.
const char* nccl_tests_name_of(DataType type);

/// "2.28.9" as ncclGetVersion and nccl-tests have it: 22809.
int nccl_version_code(const std::string& version);

/// "0000:1b:00.0" as nccl-tests has it: "0000:1b:00"; "cpu" where there is none, since parsers of
/// its table need a word.
std::string nccl_tests_device(const std::string& pci_id);

/// Parses either of the two names. Throws UsageError naming the option and the known names.
DataType parse_data_type(const std::string& option, const std::string& name);
Reduction parse_reduction(const std::string& option, const std::string& name);

}  // namespace shakedown::collectives
