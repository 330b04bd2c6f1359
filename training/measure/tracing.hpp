// Steps traced on every rank, on a common clock.
#pragma once

#include <vector>

#include "common/mpi_session.hpp"
#include "training/data/batches.hpp"
#include "training/exchange/timeline.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

/// The trace of one rank: ms since the first rank's trace began, on rank 0's clock.
struct RankTrace {
  bool computes = true;
  std::vector<TracedStep> steps;
};
using Trace = std::vector<RankTrace>;  // of every rank, in rank order

/// The number of steps that a run of `iterations` traces: enough for a median.
int steps_to_trace(int iterations);

/// Traces this many steps, as graphs where the engine's are, each after a step that is not traced,
/// so that it starts as consecutive steps do. (The first one, after which graphs are captured, is
/// left out.) Trains on. Collective; every rank gets all of it.
Trace trace_steps(Engine& engine, BatchSource& batches, int steps, double learning_rate,
                  const MpiSession& session);
/// Traces the exchange alone: no computation, no update.
Trace trace_exchange(Engine& engine, int steps, const MpiSession& session);

}  // namespace shakedown::training
