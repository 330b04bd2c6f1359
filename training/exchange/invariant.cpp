#include "training/exchange/invariant.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/ensure.hpp"
#include "common/host_device.hpp"
#include "common/kernels.hpp"

namespace shakedown::training {
namespace {

Plan plan_of_invariant(const StrategyContext& context) {
  Plan plan = whole_plan(context);
  plan.each_micro_batch = true;
  plan.sums = context.options.invariant / context.world.size();
  ENSURE(plan.sums * context.world.size() == context.options.invariant, "whole shards per rank");
  return plan;
}

class InvariantAllReduce final : public Strategy {
 public:
  explicit InvariantAllReduce(const StrategyContext& context)
      : Strategy(context, plan_of_invariant(context)),
        gradients_(tree_of(context.all().count())),
        statistics_(tree_of(context.weights.statistics().count)),
        first_statistics_(context.device, context.weights.statistics().bytes()) {}

  void before(Next next, int) override {
    if (next != Next::update) return;
    copy(context_.weights.statistics(), first_statistics_.view(DataType::float32));
  }

  /// Each shard starts from the same running statistics.
  std::vector<Share> finish() override {
    const View statistics = context_.weights.statistics();
    gradients_.add(context_.weights.gradients(), shard_);
    statistics_.add(statistics, shard_);
    if (++shard_ < plan().sums) {
      copy(first_statistics_.view(DataType::float32), statistics);
      return {};
    }
    shard_ = 0;
    Share share{context_.all(), {}};
    context_.exchange("all_reduce", gradients_.sum(), context_.compute, [&] {
      share.gradient = gradients_.mean();
      copy(statistics_.mean(), statistics);
    });
    return {share};
  }

 private:
  ShardTree tree_of(std::size_t count) const {
    return {context_.device, context_.compute, context_.world, count, plan().sums};
  }
  void copy(ConstView from, View to) const {
    context_.device.copy(to.data, from.data, from.bytes(), context_.compute);
  }

  int shard_ = 0;  // the next one of this rank's
  ShardTree gradients_;
  ShardTree statistics_;
  Buffer first_statistics_;  // before the update
};

}  // namespace

std::unique_ptr<Strategy> make_invariant_all_reduce(const StrategyContext& context) {
  return std::make_unique<InvariantAllReduce>(context);
}

namespace {

bool is_power_of_two(int n) { return n > 0 && std::has_single_bit(static_cast<unsigned>(n)); }

/// A part of an array.
struct Part {
  std::size_t begin = 0;
  std::size_t count = 0;

  View of(View view) const { return view.slice(begin, count); }
};

std::pair<Part, Part> halves(const Part& part) {
  const std::size_t lower = part.count / 2 / kFlatAlignment * kFlatAlignment;
  return {{part.begin, lower}, {part.begin + lower, part.count - lower}};
}

}  // namespace

ShardTree::ShardTree(Device& device, Stream& stream, Communicator& ranks, std::size_t count,
                     int shards)
    : device_(device), stream_(stream), ranks_(ranks), count_(count), shards_(shards) {
  ENSURE(is_power_of_two(shards) && is_power_of_two(ranks.size()), "a tree without gaps");
  for (int i = 0; i < std::max(1, floor_log2(static_cast<unsigned>(shards))); ++i)
    levels_.emplace_back(device, count * sizeof(float));
  if (ranks.size() > 1) received_ = Buffer(device, halves({0, count}).second.count * sizeof(float));
}

/// As a binary counter: a shard's ones are the subtrees that wait for their sibling, and each carry
/// adds two of them up.
void ShardTree::add(ConstView array, int shard) {
  const Kernels& kernels = device_.kernels();
  const auto number = static_cast<unsigned>(shard);
  auto last = static_cast<std::size_t>(std::popcount(number));
  const bool has_sibling = number % 2 == 1;
  if (has_sibling) --last;
  kernels.accumulate(level(last), array, !has_sibling, stream_);
  for (int carry = 1; carry < std::countr_one(number); ++carry, --last)
    kernels.accumulate(level(last - 1), level(last), false, stream_);
}

View ShardTree::mean() {
  add_up_ranks();
  const float shards = static_cast<float>(shards_) * static_cast<float>(ranks_.size());
  device_.kernels().scale(level(0), level(0), 1 / shards, stream_);  // a power of two: exact
  return level(0);
}

/// Recursive halving and doubling (Thakur et al. 2005), from the nearest rank to the farthest, so
/// that each element goes up the tree. Which of two ranks adds does not matter: a + b is b + a.
void ShardTree::add_up_ranks() {
  struct Split {
    int bit;
    Part kept, sent;
  };
  std::vector<Split> splits;
  Part own{0, count_};
  for (int bit = 1; bit < ranks_.size(); bit *= 2) {
    auto [kept, sent] = halves(own);
    if ((ranks_.rank() & bit) != 0) std::swap(kept, sent);
    const View received = received_.view(DataType::float32).slice(0, kept.count);
    swap(sent.of(level(0)), received, bit);
    device_.kernels().accumulate(kept.of(level(0)), received, false, stream_);
    splits.push_back({bit, kept, sent});
    own = kept;
  }
  for (auto split = splits.rbegin(); split != splits.rend(); ++split)
    swap(split->kept.of(level(0)), split->sent.of(level(0)), split->bit);
}

void ShardTree::swap(ConstView send, View recv, int bit) {
  const int peer = ranks_.rank() ^ bit;
  ranks_.group([&] {
    ranks_.send(send, peer, stream_);
    ranks_.recv(recv, peer, stream_);
  });
}

}  // namespace shakedown::training
