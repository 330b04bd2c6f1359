// What ddp and all-reduce exchange: the network's gradients themselves, or these in another type in
// memory of their own.
#pragma once

#include "common/kernels.hpp"
#include "training/strategy.hpp"

namespace shakedown {

class ExchangedGradients {
 public:
  explicit ExchangedGradients(const StrategyContext& context) : context_(context) {
    const DataType computed = context.weights.type();
    const DataType type = exchanged_type(context.options, computed);
    if (type != computed)
      staging_ =
          FlatBuffer(context.device, context.compute, type, whole_weights(context.table).gradients);
  }

  /// Where they are averaged.
  View at(Range range) const {
    return staging_.empty() ? context_.weights.gradients(range) : staging_.at(range);
  }

  /// Enqueues their conversion, where it takes one, and the all-reduce.
  void all_reduce(Range range, Stream& stream) const {
    const View view = at(range);
    if (!staging_.empty())
      context_.device.kernels().convert(context_.weights.gradients(range), view, stream);
    context_.world.all_reduce(view, view, Reduction::avg, stream);
  }

  /// Of a rank that updates everything.
  std::vector<Share> shares() const { return {{context_.all(), at(context_.all())}}; }

 private:
  StrategyContext context_;
  FlatBuffer staging_;  // empty: exchanged in place
};

}  // namespace shakedown
