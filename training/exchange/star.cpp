#include "training/exchange/star.hpp"

namespace shakedown::training {

Star::Star(const StrategyContext& context, int first_worker, std::size_t largest)
    : context_(context), first_worker_(first_worker), largest_(largest) {
  if (!at_centre()) return;
  const DataType type = context.weights.type();
  received_ = Buffer(context.device, workers() * largest * size_of(type));
  if (type != DataType::float32) sum_ = Buffer(context.device, largest * sizeof(float));
}

View Star::received(std::size_t worker, Range piece) const {
  return received_.view(context_.weights.type()).slice(worker * largest_, piece.count());
}

void Star::push(Range piece) {
  if (!at_centre())
    return context_.world.send(context_.weights.gradients(piece), 0, context_.compute);
  for (std::size_t w = 0; w < workers(); ++w)
    context_.world.recv(received(w, piece), first_worker_ + static_cast<int>(w), context_.compute);
}

void Star::pull(Range piece) {
  const View weights = context_.weights.compute(piece);
  if (!at_centre()) return context_.world.recv(weights, 0, context_.compute);
  for (std::size_t w = 0; w < workers(); ++w)
    context_.world.send(weights, first_worker_ + static_cast<int>(w), context_.compute);
}

Share Star::average(Range piece, bool with_own) {
  const Kernels& kernels = context_.device.kernels();
  const View gradient = context_.weights.gradients(piece);
  const View sum =
      sum_.bytes() == 0 ? gradient : sum_.view(DataType::float32).slice(0, piece.count());
  if (with_own && sum_.bytes() > 0) kernels.accumulate(sum, gradient, true, context_.compute);
  for (std::size_t w = 0; w < workers(); ++w)
    kernels.accumulate(sum, received(w, piece), w == 0 && !with_own, context_.compute);
  const auto ranks = static_cast<float>(workers() + (with_own ? 1 : 0));
  kernels.scale(sum, gradient, 1.0F / ranks, context_.compute);
  return {piece, gradient};
}

}  // namespace shakedown::training
