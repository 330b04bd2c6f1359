// All-reduce after backward: the whole flat buffer at once, or parameter by parameter. Nothing
// overlaps: what a training loop with `for p in parameters: all_reduce(p.grad)` does.
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/invariant.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const StrategyContext& context) : Strategy(context), gradients_(context) {
    if (!context.options.per_tensor) {
      pieces_.push_back(context.all());
      return;
    }
    const auto& parameters = context.table.parameters();
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
      pieces_.push_back({p->offset, p->offset + p->stored});
  }

  std::vector<Share> finish() override {
    for (const Range& piece : pieces_)
      exchange("all_reduce", gradients_.at(piece), context_.compute,
               [&] { gradients_.all_reduce(piece, context_.compute); });
    return gradients_.shares();
  }

 private:
  ExchangedGradients gradients_;
  std::vector<Range> pieces_;
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
