#include "training/exchange/star.hpp"

namespace shakedown::training {

Plan plan_of_star(const StrategyContext& context) {
  const auto owned =
      context.world.rank() == 0 ? std::vector<Range>{context.all()} : std::vector<Range>{};
  return {context.updating(owned), owned};
}

Star::Star(const StrategyContext& context, std::size_t largest) : context_(context) {
  if (at_centre()) received_.emplace(context, context.world.size() - 1, largest);
}

void Star::push(Range piece) {
  if (!at_centre())
    return context_.world.send(context_.weights.gradients(piece), 0, context_.compute);
  for (int worker = 1; worker < context_.world.size(); ++worker)
    context_.world.recv(received_->from(worker - 1, piece), worker, context_.compute);
}

void Star::pull(Range piece) {
  const View weights = context_.weights.compute(piece);
  if (!at_centre()) return context_.world.recv(weights, 0, context_.compute);
  for (int worker = 1; worker < context_.world.size(); ++worker)
    context_.world.send(weights, worker, context_.compute);
}

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
