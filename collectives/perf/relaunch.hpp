// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.
#pragma once

namespace shakedown::collectives {

/// Where more than one GPU is requested and no launcher has started this process, becomes
/// launch/mpi with that number of ranks of the same command; else returns. Call it before MPI
/// starts.
void relaunch_for_gpus(int gpus, int argc, char** argv);

}  // namespace shakedown::collectives
