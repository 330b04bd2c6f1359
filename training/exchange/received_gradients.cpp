#include "training/exchange/received_gradients.hpp"

namespace shakedown::training {

ReceivedGradients::ReceivedGradients(const StrategyContext& context, int senders,
                                     std::size_t largest)
    : context_(context), senders_(senders), largest_(largest) {
  const DataType type = context.weights.type();
  received_ = Buffer(context.device, static_cast<std::size_t>(senders) * largest * size_of(type));
  if (type != DataType::float32) sum_ = Buffer(context.device, largest * sizeof(float));
}

View ReceivedGradients::from(int sender, Range piece) const {
  return received_.view(context_.weights.type())
      .slice(static_cast<std::size_t>(sender) * largest_, piece.count());
}

Share ReceivedGradients::average(Range piece, bool with_own) const {
  const Kernels& kernels = context_.device.kernels();
  const View gradient = context_.weights.gradients(piece);
  const View sum =
      sum_.bytes() == 0 ? gradient : sum_.view(DataType::float32).slice(0, piece.count());
  if (with_own && sum_.bytes() > 0) kernels.accumulate(sum, gradient, true, context_.compute);
  for (int sender = 0; sender < senders_; ++sender)
    kernels.accumulate(sum, from(sender, piece), sender == 0 && !with_own, context_.compute);
  kernels.scale(sum, gradient, 1.0F / static_cast<float>(senders_ + (with_own ? 1 : 0)),
                context_.compute);
  return {piece, gradient};
}

}  // namespace shakedown::training
