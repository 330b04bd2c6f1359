// SGD, LARS, Adam and AdamW over the flat buffers: one kernel a range. With LARS, or where
// gradients are clipped, the norms first.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "resnet/network.hpp"
#include "resnet/weights.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::training {

// The Euclidean norms of every parameter and of its gradient, and of all gradients, where each rank
// may hold parts of them: sums of squares of the parts here, added up over the ranks by the
// strategy; then LARS's trust ratios and the factor that clips the gradients. All on the device.

class ParameterNorms {
 public:
  /// `table` and `kernels` must outlive this. `of_weights`: of the weights too.
  ParameterNorms(const NormSettings& settings, bool of_weights, Device& device, Stream& stream,
                 const ParameterTable& table, const UpdateKernels& kernels);

  /// The ranges that this rank updates.
  void allocate(const std::vector<Range>& ranges);
  /// Enqueues: sums() are those of the shares, whose ranges are the allocated ones.
  void measure(const std::vector<Share>& shares, const Weights& weights);
  /// To be added up over the ranks that update parts.
  View sums() const { return sums_.view(DataType::float32); }
  /// Enqueues: clip and grad_norm in the scalars, and trust ratios, from the sums.
  void apply(StepScalars* scalars);

  /// Ratio by parameter, and which parameter a chunk from this element on is of.
  const float* trust() const { return static_cast<const float*>(trust_.data()); }
  const std::uint16_t* parameters_from(std::size_t element) const;

  /// Bytes that measure() reads.
  double bytes_moved(const std::vector<Share>& shares) const;
  std::size_t bytes() const;

 private:
  /// The pieces of one range.
  struct Part {
    Range range;
    std::span<const NormPiece> pieces;  // device memory
  };
  std::size_t parameters() const { return table_.parameters().size(); }
  Squares* squares() const { return static_cast<Squares*>(sums_.data()); }
  void describe_parameters();

  NormSettings settings_;
  bool of_weights_;
  Device& device_;
  Stream& stream_;
  const ParameterTable& table_;
  const UpdateKernels& kernels_;
  std::vector<Part> parts_;
  Buffer pieces_;
  Buffer first_;     // slot of each parameter's first piece, and the number of pieces
  Buffer partials_;  // Squares by slot
  Buffer sums_;      // Squares by parameter
  Buffer trust_;
  Buffer adapted_;  // whether LARS adapts the rate: not of norms and biases
  Buffer chunks_;   // the parameter of each chunk
};

/// A parameter's parts in a range, in pieces that one thread block sums; slots are not assigned.
struct ParameterPiece {
  std::size_t parameter = 0;
  NormPiece piece;
};
std::vector<ParameterPiece> pieces_of(const ParameterTable& table, Range range);

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
  /// Optimises the parameters of the network. All but the options must outlive the optimiser.
  Optimizer(const OptimizerOptions& options, Network& network, const UpdateKernels& kernels);

  /// Allocates and zeroes the state of these ranges, the only ones that are updated here.
  void allocate(const std::vector<Range>& ranges);
  /// The momenta, by PyTorch's names: momentum_buffer, or exp_avg and exp_avg_sq.
  std::vector<StateBuffer> state_buffers();
  /// Forgets the momenta.
  void reset();

  /// Enqueues the norms that the update needs before it, where it needs some. norm_sums() is then
  /// to be added up over the ranks that update parts.
  void measure_norms(const std::vector<Share>& shares);
  View norm_sums() const { return norms_ ? norms_->sums() : View(); }
  /// Enqueues the update of the shares' ranges from their gradients; see UpdateKernels.
  void update(const std::vector<Share>& shares, StepScalars* scalars);

  std::size_t bytes() const;

 private:
  double bytes_moved(const Share& share) const;
  UpdateRange operands(const Share& share) const;
  Buffer decay_flags() const;

  OptimizerOptions options_;
  UpdateRule rule_;
  Device& device_;
  Stream& stream_;
  const ParameterTable& table_;
  const Weights& weights_;
  const UpdateKernels& kernels_;
  Recorder& recorder_;
  FlatBuffer state_a_;
  FlatBuffer state_b_;  // Adam's
  Buffer decayed_;      // a byte a chunk; empty when everything decays
  std::optional<ParameterNorms> norms_;
};

// An exponential moving average of the weights that this rank updates and of its running
// statistics, as torchvision's ExponentialMovingAverage with use_buffers=True. Updated on the
// device.

struct EmaOptions {
  double ema = 0;  // decay; 0: no average
  int ema_every = 1;
};
void declare_options(OptionSet& options, EmaOptions& values);

class Ema {
 public:
  /// `weights` and `kernels` must outlive this.
  Ema(const EmaOptions& options, Device& device, Stream& stream, const Weights& weights,
      const UpdateKernels& kernels);

  /// Allocates the average of these ranges, the only ones that are updated here.
  void allocate(const std::vector<Range>& ranges);
  // These enqueue.
  /// The average is the weights and running statistics as they are.
  void reset();
  /// After an update: see UpdateKernels::average.
  void update(const StepScalars* scalars);

  FlatBuffer& weights() { return average_; }
  View statistics() const { return statistics_.view(DataType::float32); }
  /// Bytes that update() reads and writes.
  double bytes_moved() const { return 3.0 * static_cast<double>(bytes()); }
  std::size_t bytes() const { return average_.bytes() + statistics_.bytes(); }

 private:
  EmaSettings settings_;
  Device& device_;
  Stream& stream_;
  const Weights& weights_;
  const UpdateKernels& kernels_;
  FlatBuffer average_;
  Buffer statistics_;
};

}  // namespace shakedown::training
