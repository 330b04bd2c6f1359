// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace shakedown::collectives {

/// What -g or --ngpus asks for, the last of them, and the other arguments.
struct GpuRequest {
  int gpus = 1;
  std::vector<std::string> rest;
};
GpuRequest requested_gpus(std::span<const std::string> arguments);

/// Where -g or --ngpus asks for more than one and no launcher has started this process, becomes
/// launch/mpi with as many ranks of the same command; else returns. Call it before MPI starts.
void relaunch_for_gpus(int argc, char** argv);

}  // namespace shakedown::collectives
