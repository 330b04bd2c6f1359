// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.
#pragma once

#include "collectives/perf/perf_options.hpp"

namespace shakedown::collectives {

/// Where more than one GPU is requested and no launcher has started this process, becomes
/// launch/mpi with that number of ranks of the same command; else returns. Call it before MPI
/// starts. Ends with 2 where this is a copy of the program, without launch/mpi next to its folder.
void relaunch_for_gpus(const PerfOptions& options, int argc, char** argv);

}  // namespace shakedown::collectives
