// All-reduce after backward: the whole flat buffer at once, or parameter by parameter. Nothing
// overlaps: what a training loop with `for p in parameters: all_reduce(p.grad)` does.
#include "training/phase_timer.hpp"
#include "training/strategies/entries.hpp"

namespace shakedown {
namespace {

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const StrategyContext& context) : Strategy(context), timer_(context.device) {
    if (!context.options.per_tensor) {
      pieces_.push_back(context.all());
      return;
    }
    const auto& parameters = context.table.parameters();
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
      pieces_.push_back({p->offset, p->offset + p->stored});
  }

  std::vector<Share> finish() override {
    timer_.time(context_.compute, [&] {
      for (const Range& piece : pieces_) {
        const View view = context_.weights.gradients(piece);
        context_.world.all_reduce(view, view, Reduction::avg, context_.compute);
      }
    });
    return shares_in_place();
  }
  std::vector<Phase> phases() const override { return {{"comm_ms", timer_.median_ms()}}; }

 private:
  std::vector<Range> pieces_;
  PhaseTimer timer_;
};

}  // namespace

StrategyEntry all_reduce_strategy() {
  return {.name = "all-reduce",
          .summary = "one all-reduce after backward",
          .reference = "",
          .waived = "the reference; the tests hold it against a serial emulation of the ranks",
          .ranks_agree = true,
          .each_updates_all = true,
          .ranks = {},
          .make = make<AllReduce>};
}

}  // namespace shakedown
