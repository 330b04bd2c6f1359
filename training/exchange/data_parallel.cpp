// Rank 0 scatters images, broadcasts weights, gathers gradients and runs the optimiser: what
// PyTorch's DataParallel does from one process.
#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class DataParallel final : public Strategy {
 public:
  explicit DataParallel(const StrategyContext& context)
      : Strategy(context, plan_of_star(context)), star_(context) {}

  std::vector<Share> finish() override {
    star_.push();
    if (!star_.at_centre()) return {};
    return {star_.average(true)};
  }

  void publish(Published) override {
    const View weights = context_.weights.compute();
    context_.exchange("pull", weights, context_.compute,
                      [&] { context_.world.broadcast(weights, weights, 0, context_.compute); });
    context_.exchange_vectors();
  }

 private:
  Star star_;
};

}  // namespace

StrategyEntry data_parallel_strategy() {
  return {.name = "data-parallel",
          .summary = "rank 0 scatters images, broadcasts weights, gathers gradients and updates",
          .ranks = {.first_has_inputs = true},
          .transfers = {{Volume::inputs, Pattern::star, Pieces::whole, true},
                        {Volume::gradients, Pattern::star},
                        {Volume::weights, Pattern::chain}},
          .make = make<DataParallel>};
}

}  // namespace shakedown::training
