// Buckets reduce-scattered while backward runs; each rank updates its shard of each and keeps the
// optimiser's state of that alone; then the new weights are gathered: ZeRO stage 1 (Rajbhandari et
// al. 2020).
#include "training/exchange/bucket_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_zero1(const StrategyContext& context) {
  Plan plan = sharded_plan(context, buckets_of(context));
  plan.buckets = buckets_of(context);
  return plan;
}

class Zero1 final : public Strategy {
 public:
  explicit Zero1(const StrategyContext& context)
      : Strategy(context, plan_of_zero1(context)), stream_(context, "reduce_scatter") {}

  void gradients_ready(int block) override {
    stream_.gradients_ready(block, [&](Range bucket, Stream& stream) {
      reduce_to_shards(context_.world, context_.weights.gradients(bucket),
                       context_.weights.gradients(context_.own_shard(bucket)), stream);
    });
  }

  std::vector<Share> finish() override {
    stream_.join();
    return shares_in_place();
  }

  void publish(Published) override {
    for (const Range& bucket : plan().buckets) {
      const View weights = context_.weights.compute(bucket);
      context_.exchange("all_gather", weights, context_.compute, [&] {
        gather_shards(context_.world, context_.weights.compute(context_.own_shard(bucket)), weights,
                      context_.compute);
      });
    }
    context_.exchange_vectors();
  }

 private:
  BucketStream stream_;
};

}  // namespace

StrategyEntry zero1_strategy() {
  return {.name = "zero1",
          .summary = "optimizer state sharded: gradients reduce-scattered, weights all-gathered",
          .transfers = {{Volume::gradients, Pattern::pass, Pieces::buckets},
                        {Volume::weights, Pattern::pass}},
          .make = make<Zero1>};
}

}  // namespace shakedown::training
