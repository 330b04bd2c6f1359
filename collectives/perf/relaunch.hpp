// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace shakedown::collectives {

/// The number after the last -g or --ngpus, and the other arguments.
struct GpuRequest {
  int gpus = 1;
  std::vector<std::string> rest;
};
GpuRequest requested_gpus(std::span<const std::string> arguments);

/// Where -g or --ngpus requests more than one and no launcher has started this process, replaces it
/// by launch/mpi with that many ranks of the same command; else returns. To be called before MPI
/// starts.
void relaunch_for_gpus(int argc, char** argv);

}  // namespace shakedown::collectives
