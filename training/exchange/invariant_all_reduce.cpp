#include "training/exchange/invariant_all_reduce.hpp"

#include "common/error.hpp"
#include "training/exchange/shard_tree.hpp"

namespace shakedown::training {
namespace {

class InvariantAllReduce final : public Strategy {
 public:
  explicit InvariantAllReduce(const StrategyContext& context)
      : Strategy(context),
        shards_(context.options.invariant / context.world.size()),
        gradients_(tree_of(context.all().count())),
        statistics_(tree_of(context.weights.statistics().count)),
        first_statistics_(context.device, context.weights.statistics().bytes()) {
    ENSURE(shards_ * context.world.size() == context.options.invariant, "whole shards per rank");
  }

  bool exchanges_each_micro_batch() const override { return true; }
  bool sums_micro_batches() const override { return true; }

  void begin_update() override {
    copy(context_.weights.statistics(), first_statistics_.view(DataType::float32));
  }

  /// Each shard starts from the same running statistics.
  std::vector<Share> finish() override {
    const View statistics = context_.weights.statistics();
    gradients_.add(context_.weights.gradients(), shard_);
    statistics_.add(statistics, shard_);
    if (++shard_ < shards_) {
      copy(first_statistics_.view(DataType::float32), statistics);
      return {};
    }
    shard_ = 0;
    Share share{context_.all(), {}};
    exchange("all_reduce", gradients_.sum(), context_.compute, [&] {
      share.gradient = gradients_.mean();
      copy(statistics_.mean(), statistics);
    });
    return {share};
  }

 private:
  ShardTree tree_of(std::size_t count) const {
    return {context_.device, context_.compute, context_.world, count, shards_};
  }
  void copy(ConstView from, View to) const {
    context_.device.copy(to.data, from.data, from.bytes(), context_.compute);
  }

  int shards_;     // of this rank, per update
  int shard_ = 0;  // the next one
  ShardTree gradients_;
  ShardTree statistics_;
  Buffer first_statistics_;  // before the update
};

}  // namespace

std::unique_ptr<Strategy> make_invariant_all_reduce(const StrategyContext& context) {
  return std::make_unique<InvariantAllReduce>(context);
}

}  // namespace shakedown::training
