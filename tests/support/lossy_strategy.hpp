// A strategy whose exchange loses the last rank's gradients of the stem: what a certificate must
// find.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "training/step/engine_settings.hpp"

namespace shakedown::training {

/// Does as `whole` does, but for the gradients that it loses.
class LossyStrategy final : public Strategy {
 public:
  LossyStrategy(const StrategyContext& context, std::unique_ptr<Strategy> whole)
      : Strategy(context), whole_(std::move(whole)) {}

  void gradients_ready(int block) override {
    if (block == 0 && context_.world.rank() + 1 == context_.world.size()) {
      const View lost = context_.weights.gradients(context_.table.block_range(block));
      context_.device.zero(lost.data, lost.bytes(), context_.compute);
    }
    whole_->gradients_ready(block);
  }

  WeightsLayout layout() const override { return whole_->layout(); }
  std::vector<Range> owned() const override { return whole_->owned(); }
  void begin_update() override { whole_->begin_update(); }
  void before_forward(int block) override { whole_->before_forward(block); }
  void before_backward(int block) override { whole_->before_backward(block); }
  bool exchanges_each_micro_batch() const override { return whole_->exchanges_each_micro_batch(); }
  std::vector<Share> finish() override { return whole_->finish(); }
  void agree_on_finite() const override { whole_->agree_on_finite(); }
  void publish() override { whole_->publish(); }
  void publish_alone() override { whole_->publish_alone(); }
  void distribute() override { whole_->distribute(); }
  void serve(const Updates& updates) override { whole_->serve(updates); }
  std::vector<long> staleness() const override { return whole_->staleness(); }
  double rate_share() const override { return whole_->rate_share(); }
  std::vector<Range> buckets() const override { return whole_->buckets(); }

 private:
  std::unique_ptr<Strategy> whole_;
};

/// Has the strategy of `settings` lose gradients from when `loses` is set, and no other, such as
/// its reference.
inline void make_lossy(EngineSettings& settings, const bool& loses) {
  settings.make_strategy = [&loses, lossy = settings.strategy](const StrategyEntry& entry,
                                                               const StrategyContext& context) {
    std::unique_ptr<Strategy> made = entry.make(context);
    const StrategyOptions& options = context.options;
    if (!loses || options.strategy != lossy.strategy || options.grad_dtype != lossy.grad_dtype)
      return made;
    return std::unique_ptr<Strategy>(std::make_unique<LossyStrategy>(context, std::move(made)));
  };
}

}  // namespace shakedown::training
