// SGD, Adam and AdamW over the flat buffers: one kernel a range.
#pragma once

#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/kernels.hpp"
#include "resnet/weights.hpp"

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
  bool no_norm_decay = false;  // else norms and biases decay too, as in PyTorch
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
  /// Optimises the parameters of `table`. The weights must outlive the optimiser.
  Optimizer(const OptimizerOptions& options, Device& device, Stream& stream,
            const ParameterTable& table, const Weights& weights);

  /// Allocates and zeroes the state of these ranges, the only ones that are updated here.
  void allocate(const std::vector<Range>& ranges);
  /// The momenta, by PyTorch's names: momentum_buffer, or exp_avg and exp_avg_sq.
  std::vector<StateBuffer> state_buffers();
  /// Forgets the momenta.
  void reset();
  /// Enqueues the update of a range from its gradients; see Kernels::sgd and adam.
  void update(Range range, ConstView gradient, const StepScalars* scalars);

  /// Bytes that update() reads and writes: gradients, master weights, state, the rounded copy.
  double bytes_moved(Range range, ConstView gradient) const;

  std::size_t bytes() const { return state_a_.bytes() + state_b_.bytes() + decayed_.bytes(); }

 private:
  UpdateRange operands(Range range, ConstView gradient) const;

  OptimizerOptions options_;
  Device& device_;
  Stream& stream_;
  const Weights& weights_;
  FlatBuffer state_a_;
  FlatBuffer state_b_;  // empty for sgd
  Buffer decayed_;      // a byte a chunk; empty when everything decays
};

}  // namespace shakedown::training
