// One rank's training step: network, strategy and optimiser on the device's compute stream, all
// memory allocated before the first step, no host synchronisation within it; so it can be a graph.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/backend.hpp"
#include "common/error.hpp"
#include "resnet/network.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/optimizer.hpp"
#include "training/step/step_graphs.hpp"

namespace shakedown {
class MpiSession;
}  // namespace shakedown

namespace shakedown::training {

struct EngineSettings {
  NetworkSettings network;
  OptimizerOptions optimizer;
  StrategyOptions strategy;
  int accumulate = 1;    // micro-batches an update
  std::string no_graph;  // why a step is not to be a CUDA graph; empty: it is where it can be
  std::uint64_t seed = 0;
  std::string weights_file;  // or empty: seeded
  int batches_held = 1;      // that the caller will allocate on the device
};

/// Thrown on every rank.
struct BatchTooLarge : OutOfMemory {
  using OutOfMemory::OutOfMemory;
};

class Engine {
 public:
  /// Plans everything; activations are allocated by allocate().
  Engine(const EngineSettings& settings, Backend& backend);

  /// Collective. Throws BatchTooLarge on every rank when the batch does not fit on one, with the
  /// bytes needed and free there and the largest batch that fits. `ranks_on_device` share the
  /// device's memory.
  void allocate(int ranks_on_device);
  /// Collective, in the place of allocate(): the largest batch, up to `most`, that would fit by the
  /// plan on every rank into this share of the free memory; 0 where none does.
  int largest_batch(int ranks_on_device, int most, double share_of_free) const;

  /// Enqueues one update: `load_batch(micro_batch)` gives the network its batch, then forward,
  /// backward, exchange and update, or on a rank that does not compute its part in them. Waits only
  /// for a step some way back, so that the host does not run away. Behind the first step by a
  /// strategy, what it enqueued but the batches is captured in graphs, which the next ones launch.
  using LoadBatch = std::function<void(int micro_batch)>;
  void step(const LoadBatch& load_batch, double learning_rate);
  /// Enqueues the exchange of an update alone, of whatever gradients there are; nothing is updated.
  void exchange_alone();

  /// Steps from the same weights and batches give the same bits, or again are as fast as can be.
  void set_repeatable(bool repeatable);

  /// Why steps are no graphs, or "".
  std::string why_no_graph() const;
  /// Steps that were graphs.
  long graph_steps() const { return graph_steps_; }

  /// Enqueues a forward pass with the running statistics.
  void evaluate();

  /// Back to the first weights, no momentum, the first loss scale. Collective.
  void restart();
  /// Exchanges gradients by another strategy from the next restart() on. Throws UsageError when it
  /// needs more ranks.
  void use_strategy(const StrategyOptions& options) { use_strategy(options, *backend_.world); }
  /// The same among these ranks only.
  void use_strategy(const StrategyOptions& options, Communicator& ranks);

  /// All weights, float32 in the flat order, wherever they are held. Collective; waits.
  std::vector<float> master_weights();
  /// Those that this rank updates, and zeros for the others. Waits.
  std::vector<float> own_master_weights();
  /// This rank's running statistics. Waits.
  std::vector<float> statistics();
  /// Sets them on every rank. Collective.
  void set_weights(const std::vector<float>& master);
  /// Weights and running statistics (those of the first rank that computes) with torchvision's
  /// names. Collective; waits.
  std::vector<Tensor> state();

  /// Waits for everything enqueued, watching for errors and the timeout.
  void finish();

  Network& network() { return network_; }
  const Network& network() const { return network_; }
  Device& device() const { return *backend_.device; }
  Communicator& world() const { return *backend_.world; }
  Communicator& host() const { return *backend_.host; }
  Stream& stream() { return *stream_; }
  Timeline& timeline() { return timeline_; }
  const Strategy& strategy() const { return *strategy_; }
  const StrategyEntry& strategy_entry() const { return find_strategy(settings_.strategy.strategy); }
  /// Whether this rank has a part of the batch, and how many do.
  bool computes() const { return strategy_entry().computes(backend_.world->rank()); }
  int ranks_computing() const { return strategy_entry().computing(backend_.world->size()); }
  /// Of the gradients on their way between ranks.
  DataType exchanged_type() const {
    return training::exchanged_type(settings_.strategy, network_.weights().type());
  }
  int first_computing() const { return strategy_entry().computes(0) ? 0 : 1; }
  const EngineSettings& settings() const { return settings_; }
  /// Of starting from `weights_file`.
  const LoadRemarks& load_remarks() const { return load_remarks_; }
  StepScalars read_scalars();
  /// Enqueues a copy of them, as they are when the stream gets to it, into sizeof(StepScalars)
  /// bytes of device memory.
  void copy_scalars(const Buffer& to);
  /// Of the optimiser, and of the sum over micro-batches.
  std::size_t state_bytes() const { return optimizer_.bytes() + sum_.bytes(); }

 private:
  // engine_memory.cpp
  std::size_t bytes_needed(const Network& network) const;
  std::size_t share_of_memory(int ranks_on_device) const;
  int largest_batch(std::size_t limit, int most) const;
  bool on_all_ranks(bool mine) const;
  void check_memory(int ranks_on_device) const;
  void allocate_activations();

  bool scales_loss() const;
  void wait_for_room();
  void end_step();
  int parts() const { return computes() ? settings_.accumulate : 1; }
  void enqueue(int part);
  void enqueue_blocks(int micro_batch);
  void accumulate(Range range, View gradient, int micro_batch);
  void apply(const std::vector<Share>& shares);
  void count_update();
  void check_finite(const Share& share);
  void update(const Share& share);

  EngineSettings settings_;
  Backend& backend_;
  std::unique_ptr<Stream> stream_;
  Timeline timeline_;
  Buffer scalars_;
  Network network_;
  Optimizer optimizer_;
  Communicator* ranks_ = nullptr;  // the strategy's
  std::unique_ptr<Strategy> strategy_;
  FlatBuffer sum_;  // float32, of the micro-batches' gradients; empty without accumulation
  std::optional<StepGraphs> graphs_;  // where there can be; behind all that they use
  std::array<std::unique_ptr<Event>, 2> step_done_;
  long steps_ = 0;
  long graph_steps_ = 0;
  double learning_rate_ = -1;
  // Of the blocks, for profilers.
  std::vector<std::string> forward_names_, backward_names_;
  std::vector<float> seeded_;  // the first weights: they take long to draw
  LoadRemarks load_remarks_;
};

/// How many ranks share a device's memory: on the cpu backend those of a host, else one.
int ranks_on_device(const Backend& backend, const MpiSession& ranks);

/// Loss scale that float16 training starts with; it adapts.
inline constexpr float kInitialLossScale = 1024;

}  // namespace shakedown::training
