// The options of bin/collective_perf: its own and their defaults, or nccl-tests' under its names.
#pragma once

#include <string>
#include <vector>

#include "collectives/perf/bars.hpp"
#include "common/backend.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::collectives {

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
  int root = 0;
  bool quick = false;
  int iterations = 20;
  int warmup = 5;
  int repeats = 5;
  int aggregate = 1;
  int one_by_one = 0;
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
  std::string json;
  std::string transport = "auto";
  std::string record;
  BarOptions bars;
  BackendOptions backend{.mpi_algorithm = "library"};
  std::string inject_fault;
  std::string inject_delay;
  std::vector<std::string> refused;  // values of options that mean nothing here

  bool as_nccl_tests() const { return program != "collective_perf"; }
};

/// The defaults under the name that the program was started by.
PerfOptions default_options(const std::string& program);
void declare_options(OptionSet& options, PerfOptions& values);

}  // namespace shakedown::collectives
