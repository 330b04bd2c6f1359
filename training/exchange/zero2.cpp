// As zero1, and no rank keeps more of the gradients than its shards: each block's are reduced to
// them as they come, for every micro-batch: ZeRO stage 2 (Rajbhandari et al. 2020).
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

class Zero2 final : public Strategy {
 public:
  explicit Zero2(const StrategyContext& context)
      : Strategy(context),
        blocks_(block_ranges(context.table)),
        stream_(context),
        gradients_(context, own_shards(blocks_), *stream_) {}

  WeightsLayout layout() const override {
    WeightsLayout layout = updating(owned());
    layout.gradients = rotating(blocks_, kBuffers);
    return layout;
  }
  std::vector<Range> owned() const override { return own_shards(blocks_); }

  void before_backward(int block) override { gradients_.before_backward(block); }
  void gradients_ready(int block) override { gradients_.gradients_ready(block); }
  bool exchanges_each_micro_batch() const override { return true; }
  std::vector<Share> finish() override { return gradients_.finish(); }

  void publish() override {
    exchange("all_gather", context_.weights.compute(), context_.compute, [&] {
      context_.world.group([&] {
        for (const Range& block : blocks_)
          gather_shards(context_.world, context_.weights.compute(own_shard(block)),
                        context_.weights.compute(block), context_.compute);
      });
    });
    context_.exchange_vectors();
  }

 private:
  std::vector<Range> blocks_;
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
