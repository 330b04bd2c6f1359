// As zero2, and no rank keeps more of the weights than its shards: each block's are gathered before
// it computes, one block ahead, and overwritten after: fully sharded data parallelism, ZeRO stage 3
// (Rajbhandari et al. 2020).
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_fsdp(const StrategyContext& context) {
  const std::vector<Range> blocks = block_ranges(context.table);
  Plan plan = sharded_plan(context, blocks);
  plan.layout.master = packed(plan.owned);
  plan.layout.compute = plan.layout.gradients = rotating(blocks, kBuffers);
  plan.each_micro_batch = true;
  return plan;
}

class Fsdp final : public Strategy {
 public:
  explicit Fsdp(const StrategyContext& context)
      : Strategy(context, plan_of_fsdp(context)),
        stream_(context),
        gradients_(context, plan().owned, *stream_),
        free_(context.device.make_event()) {
    if (context.weights.type() != DataType::float32)
      shards_ =
          FlatBuffer(context.device, context.compute, context.weights.type(), packed(plan().owned));
    for (auto& event : gathered_) event = context.device.make_event();
    forget();
  }

  void before(Next next, int block) override {
    if (next == Next::forward) have(block, block + 1);
    if (next != Next::backward) return;
    have(block, block - 1);
    gradients_.before_backward(block);
  }
  void gradients_ready(int block) override { gradients_.gradients_ready(block); }
  std::vector<Share> finish() override { return gradients_.finish(); }

  void publish(Published) override {
    for (const PlacedRange& placed : shards_.layout())
      context_.device.kernels().convert(context_.weights.master(placed.range),
                                        shards_.at(placed.range), context_.compute);
    context_.exchange_vectors();
    forget();
  }

 private:
  static std::size_t buffer(int block) { return static_cast<std::size_t>(block) % kBuffers; }

  /// The buffers' contents are out of date.
  void forget() { resident_.fill(-1); }

  /// The compute stream waits for the block's weights; those of `next` are on their way.
  void have(int block, int next) {
    gather(block);
    if (next >= 0 && next < context_.table.blocks()) gather(next);
    context_.compute.wait(*gathered_[buffer(block)]);
    context_.recorder.mark(Phase::exchange);
  }

  void gather(int block) {
    if (resident_[buffer(block)] == block) return;
    resident_[buffer(block)] = block;
    free_->record(context_.compute);  // the block that was there has computed
    stream_->wait(*free_);
    const Range range = context_.table.block_range(block);
    const Range mine = context_.own_shard(range);
    const View whole = context_.weights.compute(range);
    context_.exchange("all_gather", whole, *stream_, [&] {
      gather_shards(context_.world,
                    shards_.empty() ? context_.weights.master(mine) : shards_.at(mine), whole,
                    *stream_);
    });
    gathered_[buffer(block)]->record(*stream_);
  }

  ExchangeStream stream_;
  BlockGradients gradients_;
  FlatBuffer shards_;  // of the weights in their compute type, where that is not float32
  std::array<int, kBuffers> resident_{};
  std::array<std::unique_ptr<Event>, kBuffers> gathered_;
  std::unique_ptr<Event> free_;
};

}  // namespace

StrategyEntry fsdp_strategy() {
  return {.name = "fsdp",
          .summary = "as zero2, and weights sharded, all-gathered block by block",
          .transfers = {{Volume::gradients, Pattern::pass, Pieces::gathered_blocks, true}},
          .make = make<Fsdp>};
}

}  // namespace shakedown::training
