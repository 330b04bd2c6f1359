// Buckets in the order in which backward finishes them, all-reduced on a stream of their own while
// backward continues: PyTorch's DistributedDataParallel.
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_ddp(const StrategyContext& context) {
  Plan plan = whole_plan(context);
  plan.buckets = buckets_of(context);
  return plan;
}

class Ddp final : public Strategy {
 public:
  explicit Ddp(const StrategyContext& context)
      : Strategy(context, plan_of_ddp(context)),
        stream_(context, "all_reduce"),
        gradients_(context) {}

  /// The compute stream writes the statistics and exchanges them itself: forward must wait. Once
  /// per update, as in PyTorch: micro-batches under no_sync() exchange nothing.
  void before(Next next, int) override {
    if (next != Next::update || context_.options.norm_stats != "broadcast") return;
    const View statistics = context_.weights.statistics();
    context_.exchange("broadcast", statistics, context_.compute, [&] {
      context_.world.broadcast(statistics, statistics, 0, context_.compute);
    });
    context_.recorder.mark(Phase::exchange);
  }

  void gradients_ready(int block) override {
    stream_.gradients_ready(
        block, [&](Range bucket, Stream& stream) { gradients_.all_reduce(bucket, stream); });
  }

  std::vector<Share> finish() override {
    stream_.join();
    return gradients_.shares();
  }

 private:
  BucketStream stream_;
  ExchangedGradients gradients_;
};

}  // namespace

StrategyEntry ddp_strategy() {
  return {.name = "ddp",
          .summary = "buckets all-reduced while backward runs",
          .each_updates_all = true,
          .any_type = true,
          .transfers = {{Volume::gradients, Pattern::all_reduce, Pieces::buckets}},
          .make = make<Ddp>};
}

}  // namespace shakedown::training
