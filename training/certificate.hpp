// Proof that a strategy computes what its reference does: the same weights after three steps.
#pragma once

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/batches.hpp"
#include "training/engine.hpp"

namespace shakedown {

/// Of the tensor, over all ranks, that differs most for how far it moved.
struct Comparison {
  std::string tensor;
  double max_abs_diff = 0;
  double movement = 0;  // of the weight that moved furthest
  /// 0: equal; near 1: an exchange gone wrong. Infinite for what is not a number.
  double share = 0;
};
/// Three steps by each of two strategies from the same weights and data; the engine ends with
/// `found`, at the start again. The same on every rank.
Comparison compare_strategies(Engine& engine, BatchSource& batches, double learning_rate,
                              const MpiSession& session, const StrategyOptions& expected,
                              const StrategyOptions& found);

/// Three steps by the strategy's reference and three by itself, from the same weights and data;
/// the engine is restarted afterwards. Where roundings grow too fast to tell anything after three
/// steps (seen by the reference summed in another order), the learning rate is lowered first.
/// The "certificate" record's fields, the same on every rank; pass is null, with `waived`, where
/// there is nothing to compare with or nothing can be told.
Json certify(Engine& engine, BatchSource& batches, double learning_rate, const MpiSession& session);

/// Throws FailError naming the first rank whose weights differ from rank 0's in any bit.
void check_ranks_agree(Engine& engine, const MpiSession& session);

std::string summary_of_certificate(const Json& certificate);

}  // namespace shakedown
