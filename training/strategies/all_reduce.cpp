// All-reduce after backward: the whole flat buffer at once, or parameter by parameter. Nothing
// overlaps: what a training loop with `for p in parameters: all_reduce(p.grad)` does.
#include "training/strategy.hpp"

namespace shakedown {
namespace {

class AllReduce final : public Strategy {
 public:
  explicit AllReduce(const StrategyContext& context) : context_(context) {
    if (!context.options.per_tensor) {
      pieces_.push_back({0, context.gradients.count});
      return;
    }
    const auto& parameters = context.table.parameters();
    for (auto p = parameters.rbegin(); p != parameters.rend(); ++p)
      pieces_.push_back({p->offset, p->offset + p->stored});
  }

  void gradients_ready(Range) override {}

  std::vector<Range> finish() override {
    for (const Range& piece : pieces_) {
      const View view = context_.gradients.slice(piece.begin, piece.count());
      context_.world.all_reduce(view, view, Reduction::avg, context_.compute);
    }
    return {{0, context_.gradients.count}};
  }

 private:
  StrategyContext context_;
  std::vector<Range> pieces_;
};

}  // namespace

std::unique_ptr<Strategy> make_all_reduce(const StrategyContext& context) {
  return std::make_unique<AllReduce>(context);
}

}  // namespace shakedown
