// SGD, LARS, Adam and AdamW over the flat buffers: one kernel a range. With LARS, or where
// gradients are clipped, the norms first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "resnet/weights.hpp"
#include "training/step/parameter_norms.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown {
class OptionSet;
}  // namespace shakedown

namespace shakedown::training {

struct OptimizerOptions {
  std::string optimizer = "sgd";
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool nesterov = false;
  bool no_norm_decay = false;  // else norms and biases decay too, as in PyTorch; never with LARS
  double trust_coefficient = 0.001;
  double clip_grad_norm = 0;  // 0: off

  bool needs_norms() const { return optimizer == "lars" || clip_grad_norm > 0; }
  bool is_adam() const { return optimizer == "adam" || optimizer == "adamw"; }
};
void declare_options(OptionSet& options, OptimizerOptions& values);

/// State of the training that belongs to the weights: a float32 for each element that this rank
/// updates, laid out over those ranges.
struct StateBuffer {
  std::string name;
  FlatBuffer* buffer;
};

class Optimizer {
 public:
  /// Optimises the parameters of `table`. All but the options must outlive the optimiser.
  Optimizer(const OptimizerOptions& options, Device& device, Stream& stream,
            const ParameterTable& table, const Weights& weights, const UpdateKernels& kernels);

  /// Allocates and zeroes the state of these ranges, the only ones that are updated here.
  void allocate(const std::vector<Range>& ranges);
  /// The momenta, by PyTorch's names: momentum_buffer, or exp_avg and exp_avg_sq.
  std::vector<StateBuffer> state_buffers();
  /// Forgets the momenta.
  void reset();

  /// The norms that an update needs before it; null where it needs none.
  ParameterNorms* norms() { return norms_ ? &*norms_ : nullptr; }
  /// Enqueues the update of a range from its gradients; see UpdateKernels.
  void update(const Share& share, const StepScalars* scalars);

  /// Bytes that update() reads and writes: gradients, master weights, state, the rounded copy.
  double bytes_moved(const Share& share) const;

  std::size_t bytes() const;

 private:
  SgdSettings sgd_settings() const;
  UpdateRange operands(const Share& share) const;
  Buffer decay_flags() const;

  OptimizerOptions options_;
  Device& device_;
  Stream& stream_;
  const ParameterTable& table_;
  const Weights& weights_;
  const UpdateKernels& kernels_;
  FlatBuffer state_a_;
  FlatBuffer state_b_;  // Adam's
  Buffer decayed_;      // a byte a chunk; empty when everything decays
  std::optional<ParameterNorms> norms_;
};

}  // namespace shakedown::training
