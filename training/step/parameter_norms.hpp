// The Euclidean norms of every parameter and of its gradient, and of all gradients, where each rank
// may hold parts of them: sums of squares of the parts here, added up over the ranks by the
// strategy; then LARS's trust ratios and the factor that clips the gradients. All on the device.
#pragma once

#include <vector>

#include "common/device.hpp"
#include "resnet/weights.hpp"
#include "training/exchange/strategy.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::training {

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

}  // namespace shakedown::training
