// All-reduce after backward: the whole flat buffer at once, or parameter by parameter. Nothing
// overlaps: what a training loop with `for p in parameters: all_reduce(p.grad)` does.
#include "training/strategies/entries.hpp"

namespace shakedown {
namespace {

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const StrategyContext& context) : Strategy(context) {
    if (!context.options.per_tensor) {
      pieces_.push_back(context.all());
      return;
    }
    const auto& parameters = context.table.parameters();
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
      pieces_.push_back({p->offset, p->offset + p->stored});
  }

  std::vector<Share> finish() override {
    for (const Range& piece : pieces_) {
      const View view = context_.weights.gradients(piece);
      exchange("all_reduce", view, context_.compute,
               [&] { context_.world.all_reduce(view, view, Reduction::avg, context_.compute); });
    }
    return shares_in_place();
  }

 private:
  std::vector<Range> pieces_;
};

}  // namespace

StrategyEntry all_reduce_strategy() {
  return {.name = "all-reduce",
          .summary = "one all-reduce after backward",
          .reference = "",
          .waived = "the reference; the tests hold it against a serial emulation of the ranks",
          .ranks_agree = true,
          .each_updates_all = true,
          .overlaps = false,
          .ranks = {},
          .make = make<AllReduce>};
}

}  // namespace shakedown
