#include "training/exchange/star.hpp"

namespace shakedown::training {

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

}  // namespace shakedown::training
