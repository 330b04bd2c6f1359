// All-reduce of the whole flat buffer after backward. Nothing overlaps.
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/invariant.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const StrategyContext& context)
      : Strategy(context, whole_plan(context)), gradients_(context) {}

  std::vector<Share> finish() override {
    const Range all = context_.all();
    context_.exchange("all_reduce", gradients_.at(all), context_.compute,
                      [&] { gradients_.all_reduce(all, context_.compute); });
    return gradients_.shares();
  }

 private:
  ExchangedGradients gradients_;
};

std::unique_ptr<Strategy> make_all_reduce(const StrategyContext& context) {
  return context.options.invariant > 0 ? make_invariant_all_reduce(context)
                                       : make<AllReduce>(context);
}

}  // namespace

StrategyEntry all_reduce_strategy() {
  return {.name = "all-reduce",
          .summary = "one all-reduce after backward",
          .reference = "",
          .each_updates_all = true,
          .any_type = true,
          .transfers = {{Volume::gradients, Pattern::all_reduce}},
          .make = make_all_reduce};
}

}  // namespace shakedown::training
