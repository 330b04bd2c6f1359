// nccl-tests' `-g N` without MPI: N ranks by launch/mpi.
#pragma once

namespace shakedown {

/// Where -g or --ngpus asks for more than one and no launcher has started this process, becomes
/// launch/mpi with as many ranks of the same command; else returns. Call it before MPI starts.
void relaunch_for_gpus(int argc, char** argv);

}  // namespace shakedown
