// The gradients that ddp and all-reduce exchange: the network's own, or a conversion of them in
// memory of its own, in another type or as a copy.
#pragma once

#include "common/kernels.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class ExchangedGradients {
 public:
  /// `copies`: they are exchanged in memory of their own in any case, and copied back.
  explicit ExchangedGradients(const StrategyContext& context, bool copies = false)
      : context_(context), copies_(copies) {
    const DataType computed = context.weights.type();
    const DataType type = exchanged_type(context.options, computed);
    if (copies || type != computed)
      staging_ =
          FlatBuffer(context.device, context.compute, type, whole_weights(context.table).gradients);
  }

  /// The gradients exchanged.
  View at(Range range) const {
    return staging_.empty() ? context_.weights.gradients(range) : staging_.at(range);
  }

  /// Enqueues the all-reduce, with the copies and conversions that it takes.
  void all_reduce(Range range, Stream& stream) const {
    const View computed = context_.weights.gradients(range);
    const View exchanged = at(range);
    if (!staging_.empty()) copy(computed, exchanged, stream);
    context_.world.all_reduce(exchanged, exchanged, Reduction::avg, stream);
    if (copies_) copy(exchanged, computed, stream);
  }

  /// The shares of a rank that updates everything.
  std::vector<Share> shares() const {
    const Range all = context_.all();
    return {{all, copies_ ? context_.weights.gradients(all) : at(all)}};
  }

 private:
  void copy(ConstView from, View to, Stream& stream) const {
    if (from.type == to.type)
      context_.device.copy(to.data, from.data, from.bytes(), stream);
    else
      context_.device.kernels().convert(from, to, stream);
  }

  StrategyContext context_;
  bool copies_;
  FlatBuffer staging_;  // empty: exchanged in place
};

}  // namespace shakedown::training
