// Whether a strategy computes what it must: averages with each rank in them once, and the weights
// of its reference after each of three steps.
#pragma once

#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/measure/rank_census.hpp"
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
  /// By parameter: it moved so far that an update that is lost or doubled shows, rounded as it is.
  std::vector<bool> visible;
  std::string diverged;  // the first tensor of `expected` that is not finite: nothing was compared
  std::string unpublished;   // the rank that computes with other weights than the update made
  std::string inconclusive;  // why weights that fit show nothing
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

/// Whether a strategy computes what it must.
struct Certificate {
  Census census;
  bool inputs_compared = false;  // where one rank makes the batches of all: each has its own
  std::string reference;         // "": weights were not compared
  double learning_rate = 0;      // of the steps whose weights were compared
  WeightDifference difference;   // only `tensor` where the reference diverged
  Outcome outcome = Outcome::inconclusive;
  std::string waived;  // why there is nothing to certify, and no outcome; or empty
  std::string cause;   // of an outcome that is not of the difference; or empty

  bool applies() const { return waived.empty(); }
  bool passes() const { return applies() && outcome == Outcome::pass; }
  bool compares_weights() const { return applies() && cause.empty() && !reference.empty(); }
};
/// Looks for each rank in the strategy's averages, and compares what it computes with its
/// reference. `learning_rate` is the run's: a lower one than weights of float32 show is raised. The
/// same on every rank.
Certificate certify(Engine& engine, BatchSource& batches, double learning_rate,
                    const MpiSession& session);

}  // namespace shakedown::training
