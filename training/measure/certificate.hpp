// Whether a strategy computes what it must: averages with each rank in them once, and the weights
// of its reference after each of three steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/kernels.hpp"
#include "common/mpi_session.hpp"
#include "common/record.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

// Whether each rank is in every averaged gradient, once. Weights cannot show it: one rank of N
// moves them by 1/N, which is less than the roundings of bfloat16 from 64 ranks on.

/// Gradients that name the rank and micro-batch they came from, and what is wrong with their
/// averages. One round stamps every element; after rounds() every rank has stamped an element of
/// every piece in which gradients are exchanged.
class RankStamps {
 public:
  /// Of the gradients in these ranges of the flat buffers, which begin at a multiple of
  /// kFlatAlignment: pieces do too.
  RankStamps(Device& device, Stream& stream, std::vector<Range> gradients, int ranks,
             int micro_batches);

  int rounds() const;
  /// Elements of the ranges.
  std::size_t elements() const;
  /// Enqueues: a rank's gradients of `range`.
  void stamp(View gradients, Range range, int round, int rank, int micro_batch) const;
  /// Enqueues: looks at an average over all ranks and micro-batches.
  void check(const Share& share, int round);

  struct Found {
    double checked = 0;  // elements, over all rounds
    double wrong = 0;
    int round = -1;  // the first with a wrong element; the rest is of its first one
    std::uint64_t element = 0;
    int rank = 0;      // whose it must be
    double times = 0;  // what it is over what it must be; NaN or infinite where that is not finite
  };
  /// Waits.
  Found found() const;

 private:
  /// Calls body with each part of the view that has gradients, and with its stamps.
  template <class Body>
  void for_gradients(View view, Range range, int round, Body&& body) const;

  Device& device_;
  Stream& stream_;
  std::vector<Range> gradients_;
  std::size_t smallest_;  // piece, in elements
  int ranks_;
  std::uint32_t contributors_;
  double checked_ = 0;
  Buffer errors_;  // by round
};

/// The result of an engine's exchange.
struct Census {
  int ranks = 0;           // that compute
  bool pass = false;       // each is in every average, once
  std::string cause = "";  // why it is not, or nothing can be concluded
  bool unknown = false;    // nothing can be concluded
};

/// Exchanges stamped gradients by the engine's strategy, as a step does: buckets, types,
/// micro-batches. Weights stay; gradients are stamps afterwards, in padding too, until
/// use_strategy(). Collective; the same on every rank.
Census take_census(Engine& engine, const MpiSession& session);

// Whether each rank computes with what was meant for it: the batch that another rank made, and the
// weights that an update made, wherever they were updated.

// Collective, and the same on every rank. They wait.

/// Where one rank makes the batches of all: what is wrong with the first epoch's first batch, which
/// the network then has; "" where each rank has its own, bit by bit.
struct ReceivedInputs {
  bool compared = false;  // one rank makes them
  std::string cause;
};
ReceivedInputs check_inputs(Engine& engine, BatchSource& batches, const MpiSession& session);

/// The first rank and block whose weights, as its network reads them block by block, are not
/// `master` (all of them, in the flat order), rounded; or "".
std::string check_published(Engine& engine, const std::vector<float>& master,
                            const MpiSession& session);

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
