// One training step on the compute stream: forward, backward, exchange, update. Nothing in it waits
// for the device, so that it can be a CUDA graph.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/backend.hpp"
#include "common/communicator.hpp"
#include "common/device.hpp"
#include "resnet/recorder.hpp"
#include "training/step/model_state.hpp"

namespace shakedown::training {

// A rank's training step as CUDA graphs, so that the host enqueues it in one call.

/// A graph per micro-batch, between which its batches are loaded. A step that is traced has graphs
/// of its own, which record the trace's events. Everything that a graph reads and writes must
/// stay where it is for as long as this lives.
class StepGraphs {
 public:
  /// `ranks` exchange in the step.
  StepGraphs(Device& device, Stream& compute, Communicator& ranks, Recorder& recorder)
      : device_(device), compute_(compute), ranks_(ranks), recorder_(recorder) {}

  /// Whether there are graphs of the step that comes next, traced or not.
  bool captured() const { return !graphs_[recorder_.tracing() ? 1 : 0].empty(); }
  /// Captures them, of what `enqueue(micro_batch)` enqueues. It must have run once before:
  /// libraries load and connect what they need when they are first used. Collective.
  void capture(int micro_batches, const std::function<void(int micro_batch)>& enqueue);
  void launch(int micro_batch);
  /// Something will not stay where it is.
  void drop() { graphs_ = {}; }

 private:
  struct MarkedGraph {
    std::unique_ptr<Graph> graph;
    Marks marks;
  };
  std::vector<MarkedGraph>& graphs() { return graphs_[recorder_.tracing() ? 1 : 0]; }

  Device& device_;
  Stream& compute_;
  Communicator& ranks_;
  Recorder& recorder_;
  std::array<std::vector<MarkedGraph>, 2> graphs_;  // by whether they are traced
};

class Step {
 public:
  Step(const EngineSettings& settings, Backend& backend, ModelState& model);

  /// Enqueues one update: `load_batch(micro_batch)` gives the network its batch, then forward,
  /// backward, exchange and update; on a rank that does not compute, its part in the exchange.
  /// Waits only for a step some way back, so that the host does not run away. After the first step
  /// by a strategy, everything but the batches is captured in graphs, which later steps launch.
  using LoadBatch = std::function<void(int micro_batch)>;
  void run(const LoadBatch& load_batch, double learning_rate);
  /// Every later run() calls it, once per update, on each rank: where the rank computes, after its
  /// first batch is loaded. Empty: nothing.
  void before_update(std::function<void()> call) { before_update_ = std::move(call); }
  /// Enqueues forward and backward of the batch that the network holds, and no exchange: `ready`
  /// after each block's gradients, which may be overwritten when it returns. Running statistics,
  /// metrics and gradients change. Only where the rank computes with whole weights.
  void compute_gradients(const std::function<void(int block)>& ready);
  /// Enqueues the exchange of an update alone, of whatever gradients there are; nothing is updated.
  void exchange_alone();
  /// Enqueues an update in which `write` makes each block's gradients, in backward's place, and
  /// `read` gets what the optimizer would apply; nothing is updated.
  using WriteGradients = std::function<void(View gradients, Range range, int micro_batch)>;
  using ReadShare = std::function<void(const Share& share)>;
  void exchange_gradients(const WriteGradients& write, const ReadShare& read);

  /// Exchanges gradients by another strategy from the model's next restart() on. Throws UsageError
  /// when it needs more ranks.
  void use_strategy(const StrategyOptions& options) { use_strategy(options, *backend_.world); }
  /// The same among these ranks only.
  void use_strategy(const StrategyOptions& options, Communicator& ranks);
  /// Selects a bitwise repeatable forward pass, or the fastest one.
  void set_repeatable(bool repeatable);
  /// Before something that graphs use moves.
  void drop_graphs();

  /// Why steps are no graphs, or "".
  std::string why_no_graph() const;
  /// Steps that were graphs.
  long graph_steps() const { return graph_steps_; }

  const EngineSettings& settings() const { return settings_; }
  Recorder& recorder() const { return recorder_; }
  const Strategy& strategy() const { return *strategy_; }
  const StrategyEntry& strategy_entry() const { return *entry_; }
  const Plan& plan() const { return strategy_->plan(); }
  bool computes() const { return plan().computes; }
  int ranks_computing() const { return plan().ranks_computing; }
  int first_computing() const { return plan().first_computing; }
  /// The type in which gradients are exchanged.
  DataType exchanged_type() const;
  /// Bytes of the sums over micro-batches.
  std::size_t sum_bytes() const { return sum_.bytes(); }

 private:
  void enqueue(int micro_batch);
  void forward();
  template <class Compute>
  void backward(int micro_batch, Compute&& compute);
  std::vector<Share> finish_exchange(int micro_batch);
  void apply(const std::vector<Share>& shares);
  void publish();
  template <class Finish>
  void end_exchange(Finish&& finish);

  int micro_batches() const { return computes() ? settings_.accumulate : 1; }
  bool is_last(int micro_batch) const { return micro_batch + 1 == micro_batches(); }
  bool exchanges_each() const { return plan().each_micro_batch; }
  bool exchanges_after(int micro_batch) const { return exchanges_each() || is_last(micro_batch); }
  void add_to_sum(Range range, View gradient, int micro_batch);
  void limit_host_lead();
  void end_step();
  bool scales_loss() const;
  Device& device() const { return *backend_.device; }

  EngineSettings settings_;
  Backend& backend_;
  ModelState& model_;
  Stream& stream_;
  Recorder& recorder_;
  Communicator* ranks_ = nullptr;  // the strategy's
  const StrategyEntry* entry_ = nullptr;
  std::unique_ptr<Strategy> strategy_;
  FlatBuffer sum_;  // float32, of the micro-batches' gradients; empty without accumulation
  std::optional<StepGraphs> graphs_;  // where there can be; after all that they use
  std::array<std::unique_ptr<Event>, 2> step_done_;
  long steps_ = 0;
  long graph_steps_ = 0;
  std::function<void()> before_update_;
  // Names of the blocks, for profilers.
  std::vector<std::string> forward_names_, backward_names_;
};

}  // namespace shakedown::training
