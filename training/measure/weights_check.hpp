// Whether the weights are what a training can leave: numbers, and the same on every rank.
#pragma once

#include <string>

#include "common/mpi_session.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// "conv1.weight on rank 1 on n2": unsound_tensor() of what each rank holds, of the first rank that
/// has one; "" where all are sound. The same on every rank; every rank calls it.
std::string unsound_weights(Engine& engine, const MpiSession& session);

/// Throws FailError naming what unsound_weights() finds; `when` is part of the message.
void check_weights(Engine& engine, const MpiSession& session, const char* when);

/// "rank 1 on n2 differs from rank 0 on n1 (checksums ...)" of the first rank whose weights differ
/// from rank 0's in any bit; "" where all agree. The same on every rank; every rank calls it.
std::string differing_ranks(Engine& engine, const MpiSession& session);

/// Throws FailError naming what differing_ranks() finds; `when` is part of the message.
void check_ranks_agree(Engine& engine, const MpiSession& session, const char* when);

}  // namespace shakedown::training
