// No exchange: every rank trains alone. What all other strategies are held against.
#include "training/strategy.hpp"

namespace shakedown {
namespace {

class None final : public Strategy {
 public:
  explicit None(const StrategyContext& context) : all_{0, context.gradients.count} {}

  void gradients_ready(Range) override {}
  std::vector<Range> finish() override { return {all_}; }

 private:
  Range all_;
};

}  // namespace

std::unique_ptr<Strategy> make_none(const StrategyContext& context) {
  return std::make_unique<None>(context);
}

}  // namespace shakedown
