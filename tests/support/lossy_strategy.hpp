// A strategy whose exchange goes wrong with the last rank's gradients of the stem: what a
// certificate must find.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "training/step/model_state.hpp"

namespace shakedown::training {

/// What happens to the last rank's: `swapped`, the first computing rank's are in their place.
enum class Loss { none, lost, doubled, swapped, unpublished };

/// Does as `whole` does, but for the gradients that it loses; or, `unpublished`, for the weights of
/// each update, which no other rank gets.
class LossyStrategy final : public Strategy {
 public:
  LossyStrategy(const StrategyContext& context, std::unique_ptr<Strategy> whole, Loss loss)
      : Strategy(context, whole->plan()), whole_(std::move(whole)), loss_(loss) {}

  void before(Next next, int block) override { whole_->before(next, block); }
  void gradients_ready(int block) override {
    if (block == 0) lose(context_.weights.gradients(context_.table.block_range(block)));
    whole_->gradients_ready(block);
  }
  std::vector<Share> finish() override { return whole_->finish(); }
  void publish(Published how) override {
    if (loss_ != Loss::unpublished || how != Published::update) whole_->publish(how);
  }

 private:
  void lose(View gradients) {
    const int first = plan().first_computing;
    const int last = context_.world.size() - 1;
    const bool mine = context_.world.rank() == last;
    if (loss_ == Loss::lost && mine)
      context_.device.zero(gradients.data, gradients.bytes(), context_.compute);
    if (loss_ == Loss::doubled && mine) {
      if (wide_.bytes() == 0) wide_ = Buffer(context_.device, gradients.count * sizeof(float));
      const View wide = wide_.view(DataType::float32);
      context_.device.kernels().convert(gradients, wide, context_.compute);
      context_.device.kernels().scale(wide, gradients, 2, context_.compute);
    }
    if (loss_ != Loss::swapped || first == last) return;
    if (context_.world.rank() == first) context_.world.send(gradients, last, context_.compute);
    if (mine) context_.world.recv(gradients, first, context_.compute);
  }

  std::unique_ptr<Strategy> whole_;
  Loss loss_;
  Buffer wide_;  // float32
};

/// Has the strategy of `settings` go wrong as `loss` says when it is made, and no other, such as
/// its reference.
inline void make_lossy(EngineSettings& settings, const Loss& loss) {
  settings.make_strategy = [&loss, lossy = settings.strategy](const StrategyEntry& entry,
                                                              const StrategyContext& context) {
    std::unique_ptr<Strategy> made = entry.make(context);
    const StrategyOptions& options = context.options;
    if (loss == Loss::none || options.strategy != lossy.strategy ||
        options.grad_dtype != lossy.grad_dtype)
      return made;
    return std::unique_ptr<Strategy>(
        std::make_unique<LossyStrategy>(context, std::move(made), loss));
  };
}

}  // namespace shakedown::training
