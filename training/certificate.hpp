// Proof that a strategy computes what its reference does: the same weights after three steps.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/batches.hpp"
#include "training/engine.hpp"

namespace shakedown {

/// Three steps by the strategy's reference and three by itself, from the same weights and data;
/// the engine is restarted afterwards. The "certificate" record's fields, the same on every rank:
/// reference, max_abs_diff (over all weights and ranks), tolerance, pass; pass is null, with
/// `waived`, where there is nothing to compare with.
Json certify(Engine& engine, BatchSource& batches, double learning_rate,
             const MpiSession& session);

/// Throws FailError naming the first rank whose weights differ from rank 0's in any bit.
void check_ranks_agree(Engine& engine, const MpiSession& session);

std::string summary_of_certificate(const Json& certificate);

}  // namespace shakedown
