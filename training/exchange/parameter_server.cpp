// Rank 0 holds the weights and updates them; the others compute, push their gradients to it and
// pull the weights back: the synchronous parameter server (Li et al. 2014), as a true star of sends
// and receives.
#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_server(const StrategyContext& context) {
  Plan plan = plan_of_star(context);
  plan.agreed = true;
  return plan;
}

class ParameterServer final : public Strategy {
 public:
  explicit ParameterServer(const StrategyContext& context)
      : Strategy(context, plan_of_server(context)), star_(context) {}

  std::vector<Share> finish() override {
    star_.push();
    if (!star_.at_centre()) {
      context_.agree_on_finite();
      return {};
    }
    const Share share = star_.average(false);
    context_.check_and_agree(share.gradient);
    return {share};
  }

  void publish(Published) override {
    const View weights = context_.weights.compute();
    Communicator& world = context_.world;
    context_.exchange("pull", weights, context_.compute, [&] {
      world.group([&] {
        if (!star_.at_centre()) return world.recv(weights, 0, context_.compute);
        for (int worker = 1; worker < world.size(); ++worker)
          world.send(weights, worker, context_.compute);
      });
    });
    context_.exchange_vectors();
  }

 private:
  Star star_;
};

}  // namespace

StrategyEntry parameter_server_strategy() {
  return {.name = "parameter-server",
          .summary = "rank 0 updates, the others compute, push gradients and pull weights",
          .ranks = {.least = 2, .first_serves = true},
          .transfers = {{Volume::gradients, Pattern::star}, {Volume::weights, Pattern::star}},
          .make = make<ParameterServer>};
}

}  // namespace shakedown::training
