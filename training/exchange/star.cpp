#include "training/exchange/star.hpp"

namespace shakedown::training {

Plan plan_of_star(const StrategyContext& context) {
  const auto owned =
      context.world.rank() == 0 ? std::vector<Range>{context.all()} : std::vector<Range>{};
  return {context.updating(owned), owned};
}

Star::Star(const StrategyContext& context) : context_(context) {
  if (at_centre()) received_.emplace(context, context.world.size() - 1, context.all());
}

void Star::push() const {
  const View gradients = context_.weights.gradients();
  Communicator& world = context_.world;
  context_.exchange("push", gradients, context_.compute, [&] {
    world.group([&] {
      if (!at_centre()) return world.send(gradients, 0, context_.compute);
      for (int worker = 1; worker < world.size(); ++worker)
        world.recv(received_->from(worker - 1), worker, context_.compute);
    });
  });
}

ReceivedGradients::ReceivedGradients(const StrategyContext& context, int senders, Range range)
    : context_(context), senders_(senders), range_(range) {
  const DataType type = context.weights.type();
  const std::size_t count = range.count();
  received_ = Buffer(context.device, static_cast<std::size_t>(senders) * count * size_of(type));
  if (type != DataType::float32) sum_ = Buffer(context.device, count * sizeof(float));
}

View ReceivedGradients::from(int sender) const {
  return received_.view(context_.weights.type())
      .slice(static_cast<std::size_t>(sender) * range_.count(), range_.count());
}

Share ReceivedGradients::average(bool with_own) const {
  const Kernels& kernels = context_.device.kernels();
  const View gradient = context_.weights.gradients(range_);
  const View sum = sum_.bytes() == 0 ? gradient : sum_.view(DataType::float32);
  if (with_own && sum_.bytes() > 0) kernels.accumulate(sum, gradient, true, context_.compute);
  for (int sender = 0; sender < senders_; ++sender)
    kernels.accumulate(sum, from(sender), sender == 0 && !with_own, context_.compute);
  kernels.scale(sum, gradient, 1.0F / static_cast<float>(senders_ + (with_own ? 1 : 0)),
                context_.compute);
  return {range_, gradient};
}

}  // namespace shakedown::training
