// Proof that a strategy computes what its reference does: the same weights after each of three
// steps.
#pragma once

#include "common/mpi_session.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// The difference of the tensor that, over all ranks and steps, comes closest to its tolerances or
/// exceeds them.
struct WeightDifference {
  std::string tensor;
  double max_abs_diff = 0;
  double tolerance = 0;      // of max_abs_diff; infinite where single weights may differ freely
  double relative_diff = 0;  // Euclidean, over what the step moved the tensor by
  double relative_tolerance = 0;
  bool pass = false;
  std::string diverged;  // the first tensor of `expected` that is not finite: nothing was compared
  std::string inconclusive;  // why there was nothing to compare: `expected` did not train
};

/// After one step from `start`, in flat buffers: of the tensor that fits worst. Tolerances follow
/// from the gradients' type, the coarser where they are exchanged in another, and the optimiser.
WeightDifference compare_weights(const ParameterTable& table, DataType gradient, bool adam,
                                 const std::vector<float>& wanted, const std::vector<float>& got,
                                 const std::vector<float>& start);

/// Three steps by each of two strategies from the same weights and data; `found` starts each of its
/// steps from the weights that `expected` held there. The engine ends with `found`, at the start
/// again. The same on every rank.
WeightDifference compare_strategies(Engine& engine, BatchSource& batches, double learning_rate,
                                    const MpiSession& session, StrategyOptions expected,
                                    StrategyOptions found);

/// Whether a strategy computes the same as its reference.
struct Certificate {
  std::string reference;        // "": it has none
  WeightDifference difference;  // only `tensor` where the reference diverged
  bool pass = false;
  std::string waived;  // why there was nothing to compare; or empty
  std::string cause;   // that the reference diverged; or empty
};
/// Compares the strategy with its reference. The same on every rank.
Certificate certify(Engine& engine, BatchSource& batches, double learning_rate,
                    const MpiSession& session);

}  // namespace shakedown::training
