// Where the time of a step went, from traces: numbers in, numbers out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/mpi_session.hpp"
#include "resnet/recorder.hpp"
#include "training/data/batches.hpp"
#include "training/step/engine.hpp"

namespace shakedown::training {

// Steps traced on every rank, on a common clock.

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

/// Medians over the traced steps, averaged over the ranks that compute; ms.
///   step = compute + exposed communication + interference + input stall + optimizer + residual
struct Breakdown {
  std::size_t traced_steps = 0;
  double step_ms = 0;
  double compute_ms = 0;       // forward and backward, of the baseline where there is one
  double exposed_comm_ms = 0;  // the compute stream exchanges or waits for an exchange
  double input_stall_ms = 0;   // it waits for, and takes over, the batch
  double optimizer_ms = 0;
  double hidden_comm_ms = 0;  // exchanges go on while it computes
  double comm_ms = 0;         // all exchanges, one after another
  /// Extra time, compared with the baseline, of the blocks that computed during an exchange.
  std::optional<double> interference_ms;
  /// The same as a share of these blocks' time in the baseline: how much a running exchange slows
  /// computing down. 0 if there are no such blocks.
  double slowdown = 0;
  // Set in a Profile only:
  std::optional<double> none_step_ms;    // a step without an exchange
  std::optional<double> comm_alone_ms;   // the exchange without a step
  std::optional<double> serial_step_ms;  // a step whose exchange is not overlapped

  double residual_ms() const {
    return step_ms - compute_ms - exposed_comm_ms - interference_ms.value_or(0) - input_stall_ms -
           optimizer_ms;
  }
};

/// `baseline`: the same ranks' steps without an exchange, or null.
Breakdown break_down(const Trace& trace, const Trace* baseline);

/// The time of a collective is wait and transfer. The last rank to arrive does not wait, so the
/// shortest time of all ranks is the transfer. No clocks are compared.
struct ExchangeWait {
  double ms = 0;      // mean over the ranks
  int straggler = 0;  // the rank that comes last, most often
  double share = 0;   // of the steps in which it does
};

/// The same of one exchange; times are since the step's begin.
struct ExchangeTimes {
  std::size_t index = 0;  // in the step
  std::string what;
  double bytes = 0;
  double ready_ms = 0;
  double launch_ms = 0;
  double start_ms = 0;
  double end_ms = 0;
  double hidden_ms = 0;
  double exposed_ms = 0;
  std::optional<ExchangeWait> waiting;  // where all ranks need one another
};

/// In the order of their launch. Empty where the ranks, or the steps, do not all exchange alike.
std::vector<ExchangeTimes> exchange_times(const Trace& trace);

/// Median over the steps, averaged over the ranks that compute.
double step_ms(const Trace& trace);
/// Sum of a step's exchanges of that name; nothing where there are none.
std::optional<double> exchange_ms(const Trace& trace, const std::string& what);

/// When the gradients of each block, 0 the stem, were computed: ms since backward began.
struct BackwardTimes {
  std::vector<double> ready_ms;  // by block
  double backward_ms = 0;
};
BackwardTimes backward_times(const Trace& trace);

// The ranks' clocks against one another.

/// Seconds that this rank's std::chrono::steady_clock is ahead of rank 0's. A value that another
/// rank read out before it sent it lies before the moment it arrives, which bounds the difference
/// from both sides; the middle of the narrowest bounds of some rounds. Every rank calls it.
double seconds_ahead_of_root(const MpiSession& session);

// Traced steps as a timeline to look at: Chrome's trace format, which Perfetto
// (https://ui.perfetto.dev) and chrome://tracing open.

struct TracedRun {
  std::string label;  // "ddp on 4 ranks"
  std::string model;  // as --model
  Trace trace;
};

/// One process a run and rank, runs side by side from the same zero; in each, what its compute
/// stream did, its exchanges, and when the host enqueued these. Ranks run on these hosts. Throws
/// InconclusiveError when the file cannot be written.
void write_trace(const std::string& path, const std::vector<TracedRun>& runs,
                 const std::vector<std::string>& hosts);

}  // namespace shakedown::training
