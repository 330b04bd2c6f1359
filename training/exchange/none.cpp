// No exchange: every rank trains independently. All other strategies are compared with it.
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class None final : public Strategy {
 public:
  explicit None(const StrategyContext& context) : Strategy(context, whole_plan(context)) {}

  std::vector<Share> finish() override { return shares_in_place(); }
};

}  // namespace

StrategyEntry none_strategy() {
  return {.name = "none",
          .summary = "no exchange: the upper bound",
          .reference = "",
          .waived = "ranks train independently",
          .ranks_agree = false,
          .each_updates_all = true,
          .transfers = {},
          .make = make<None>};
}

}  // namespace shakedown::training
