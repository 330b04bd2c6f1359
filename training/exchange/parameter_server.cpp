// Rank 0 holds the weights and updates them; the others compute, push their gradients to it and
// pull the weights back: the synchronous parameter server (Li et al. 2014), as a true star of sends
// and receives.
#include "common/error.hpp"
#include "training/exchange/star.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

constexpr int kServer = 0;

class ParameterServer final : public Strategy {
 public:
  explicit ParameterServer(const StrategyContext& context)
      : Strategy(context), star_(context, context.all().count()) {}

  WeightsLayout layout() const override { return updating(owned()); }
  std::vector<Range> owned() const override {
    return context_.world.rank() == kServer ? std::vector<Range>{context_.all()}
                                            : std::vector<Range>{};
  }

  std::vector<Share> finish() override {
    push();
    context_.agree_on_finite();
    return {};
  }
  void serve(const Updates& updates) override {
    push();
    const Share share = star_.average(context_.all(), false);
    context_.check_and_agree(share.gradient);
    updates.apply(share);
    updates.complete();
  }

  void publish() override {
    exchange("pull", context_.weights.compute(), context_.compute,
             [&] { context_.world.group([&] { star_.pull(context_.all()); }); });
    context_.exchange_vectors();
  }

 private:
  void push() {
    exchange("push", context_.weights.gradients(), context_.compute,
             [&] { context_.world.group([&] { star_.push(context_.all()); }); });
  }

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
