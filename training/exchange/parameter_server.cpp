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
      : Strategy(context, plan_of_server(context)), star_(context, context.all().count()) {}

  std::vector<Share> finish() override {
    context_.exchange("push", context_.weights.gradients(), context_.compute,
                      [&] { context_.world.group([&] { star_.push(context_.all()); }); });
    if (!star_.at_centre()) {
      context_.agree_on_finite();
      return {};
    }
    const Share share = star_.average(context_.all(), false);
    context_.check_and_agree(share.gradient);
    return {share};
  }

  void publish(Published) override {
    context_.exchange("pull", context_.weights.compute(), context_.compute,
                      [&] { context_.world.group([&] { star_.pull(context_.all()); }); });
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
