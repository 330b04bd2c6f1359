// Whether each rank is in every averaged gradient, once. Weights cannot show it: one rank of N
// moves them by 1/N, which is less than the roundings of bfloat16 from 64 ranks on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/kernels.hpp"
#include "common/mpi_session.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

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

}  // namespace shakedown::training
