// As zero1, and no rank keeps more of the gradients than its shards: each block's are reduced to
// them as they come, for every micro-batch: ZeRO stage 2 (Rajbhandari et al. 2020).
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_zero2(const StrategyContext& context) {
  const std::vector<Range> blocks = block_ranges(context.table);
  Plan plan = sharded_plan(context, blocks);
  plan.layout.gradients = rotating(blocks, kBuffers);
  plan.each_micro_batch = true;
  return plan;
}

class Zero2 final : public Strategy {
 public:
  explicit Zero2(const StrategyContext& context)
      : Strategy(context, plan_of_zero2(context)),
        stream_(context),
        gradients_(context, plan().owned, *stream_) {}

  void before(Next next, int block) override {
    if (next == Next::backward) gradients_.before_backward(block);
  }
  void gradients_ready(int block) override { gradients_.gradients_ready(block); }
  std::vector<Share> finish() override { return gradients_.finish(); }

  void publish(Published) override {
    context_.exchange("all_gather", context_.weights.compute(), context_.compute, [&] {
      context_.world.group([&] {
        for (const Range& block : block_ranges(context_.table))
          gather_shards(context_.world, context_.weights.compute(context_.own_shard(block)),
                        context_.weights.compute(block), context_.compute);
      });
    });
    context_.exchange_vectors();
  }

 private:
  ExchangeStream stream_;
  BlockGradients gradients_;
};

}  // namespace

StrategyEntry zero2_strategy() {
  return {.name = "zero2",
          .summary = "as zero1, and gradients sharded",
          .transfers = {{Volume::gradients, Pattern::pass, Pieces::blocks, true},
                        {Volume::weights, Pattern::pass}},
          .make = make<Zero2>};
}

}  // namespace shakedown::training
