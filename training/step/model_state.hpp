// One rank's model: network, optimiser and step scalars in device memory. Only this class knows
// which of a strategy's weights lie where: master weights, compute weights, vectors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/backend.hpp"
#include "common/hash.hpp"
#include "resnet/architecture.hpp"
#include "resnet/model_options.hpp"
#include "resnet/network.hpp"
#include "training/data/batches.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/optimizer.hpp"

namespace shakedown::training {

/// Of a training step: bin/compare sweeps over them.
struct StepOptions {
  ModelOptions model;
  StrategyOptions strategy;
  OptimizerOptions optimizer;
  EmaOptions ema;
  int batch_size = 64;
  int global_batch = 0;  // 0: batch_size per rank
  int accumulate = 1;    // micro-batches per update
  std::string graph = "auto";
  int seed = 0;
};

/// The options of one rank's engine, and what follows from them, the backend and the data.
struct EngineSettings : StepOptions {
  NetworkSettings network;
  std::string no_graph;  // why steps must not be CUDA graphs; empty: they are where they can be
  /// Device memory that the caller will allocate for the input of such a network.
  std::function<std::size_t(const NetworkSettings&)> input_bytes = batch_bytes;
  /// Virtual shards of the global batch per rank, a micro-batch each, with --invariant; else 1.
  int shards() const { return strategy.invariant > 0 ? accumulate : 1; }
  /// The seed of what has this number.
  std::uint64_t seed_of(std::uint64_t number) const {
    return derive_seed(static_cast<std::uint64_t>(seed), number);
  }
  /// Makes a strategy; tests make one that fails.
  std::function<std::unique_ptr<Strategy>(const StrategyEntry&, const StrategyContext&)>
      make_strategy = [](const auto& entry, const auto& context) { return entry.make(context); };
};

/// Loss scale that float16 training starts with; it adapts.
inline constexpr float kInitialLossScale = 1024;

class ModelState {
 public:
  ModelState(const EngineSettings& settings, Backend& backend);

  /// Lays the weights and the optimiser's state out as the strategy has this rank hold them. Their
  /// values are lost: restart() sets them.
  void use(Strategy& strategy, bool scales_loss);

  // Enqueued by a step.
  void set_learning_rate(double learning_rate);
  /// Clears scalars()->finite if a gradient is inf or NaN. Does nothing without loss scaling.
  void check_finite(const std::vector<Share>& shares);
  Optimizer& optimizer() { return optimizer_; }
  /// Counts the update as applied or skipped, and adapts the loss scale.
  void finish_update();
  /// Ends an exchange whose gradients are not applied: it is counted, and the loss scale stays.
  void discard_update();
  /// A forward pass with the running statistics.
  void evaluate();
  /// The weights that each block computes with, one block after the other: `gathered` may enqueue
  /// what reads them. Waits.
  void gather_weights(const std::function<void(int block)>& gathered = [](int) {});
  /// A copy of the scalars, as they are when the stream gets to it, to sizeof(StepScalars) bytes of
  /// device memory.
  void copy_scalars(const Buffer& to);

  /// Waits for everything enqueued, watching for errors and the timeout.
  void finish();

  // Collective. They wait.

  /// Back to the first weights, no momentum, the first loss scale.
  void restart();
  /// All weights, float32 in the flat order, wherever they are held.
  std::vector<float> master_weights();
  void set_weights(const std::vector<float>& master);
  /// Weights and running statistics with torchvision's names.
  std::vector<Tensor> state();
  /// The same of their average.
  std::vector<Tensor> average_state();
  /// Runs `body` while every rank that computes has the same weights (rank 0's, where they differ)
  /// and the same running statistics (those of the first rank that computes, or their average);
  /// then each rank has its own back.
  void with_common_weights(const std::function<void()>& body);
  /// Runs `body` with the average of the weights and running statistics in the place of both; then
  /// each rank has its own back.
  void with_average_weights(const std::function<void()>& body);
  bool averages_weights() const { return ema_.has_value(); }

  // The state of this rank. These functions wait for the device.

  /// The weights that this rank updates, and zeros for the others.
  std::vector<float> own_master_weights();
  std::vector<float> statistics();
  /// Checksum of the weights that are the same on every rank if ranks_agree.
  std::uint64_t checksum();
  StepScalars read_scalars();

  // The state of a checkpoint in addition to state(): this rank's part, by name, and the scalars
  // (updates applied, loss scale). Fill the buffers after restart() and set_weights(), which reset
  // them.

  /// momentum_buffer, or exp_avg and exp_avg_sq; ema, with an average of the weights.
  std::vector<StateBuffer> state_buffers();
  /// The average of this rank's running statistics; no elements without an average of the weights.
  View ema_statistics();
  void set_scalars(const StepScalars& scalars);

  const Plan& plan() const { return strategy_->plan(); }
  Network& network() { return network_; }
  const Network& network() const { return network_; }
  Device& device() const { return *backend_.device; }
  Stream& stream() { return *stream_; }
  StepScalars* scalars() { return static_cast<StepScalars*>(scalars_.data()); }
  bool scales_loss() const { return scales_loss_; }
  std::size_t optimizer_bytes() const { return optimizer_.bytes() + (ema_ ? ema_->bytes() : 0); }
  /// Remarks of starting from --weights.
  const LoadRemarks& load_remarks() const { return load_remarks_; }

 private:
  /// A part of the device's memory as it was, in host memory: the batch has planned the device's.
  struct Kept {
    View view;
    Buffer own;
  };
  Kept keep(View view);
  void restore(const std::vector<Kept>& kept);
  /// The state before the first step.
  struct First {
    std::vector<float> weights;
    std::vector<float> statistics;  // empty: those of a new network
    std::int64_t batches_tracked = 0;
  };
  First first();
  void load(const std::vector<float>& master);
  void share_statistics();
  void read(ConstView from, Range range, std::vector<float>& to);

  Backend& backend_;
  const EngineSettings settings_;
  std::unique_ptr<UpdateKernels> kernels_;
  std::unique_ptr<Stream> stream_;
  Buffer scalars_;
  Network network_;
  Optimizer optimizer_;
  std::optional<Ema> ema_;
  Strategy* strategy_ = nullptr;
  bool scales_loss_ = false;
  double learning_rate_ = -1;
  First first_;  // they take long to draw, or to read
  LoadRemarks load_remarks_;
};

// Whether weights and running statistics are what a network can compute with.

/// The first tensor, by torchvision's name, with an element that is not finite, or with a negative
/// running variance; "" where there is none. `master` is in the flat order; empty `statistics` are
/// not looked at.
std::string unsound_tensor(const ParameterTable& table, std::span<const float> master,
                           std::span<const float> statistics);

}  // namespace shakedown::training
