// All-reduce of --invariant: the same bits on any number of ranks.
#pragma once

#include <memory>
#include <vector>

#include "common/communicator.hpp"
#include "common/device.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

/// Each micro-batch is one of options.invariant shards of the global batch, in the order of the
/// ranks. Their gradients, and the running statistics that each leaves, become their means in
/// float32, by one tree over the shards.
std::unique_ptr<Strategy> make_invariant_all_reduce(const StrategyContext& context);

// The mean of N arrays, one per virtual shard of a batch, added up in one binary tree over the
// shards' numbers: however many ranks the shards are on, it has the same bits.

class ShardTree {
 public:
  /// Arrays of `count` elements. Each rank has `shards` of them, whose numbers follow one another;
  /// `shards` and the number of ranks are powers of two.
  ShardTree(Device& device, Stream& stream, Communicator& ranks, std::size_t count, int shards);

  /// Enqueues: adds this rank's shard number `shard`, counted from 0; they come in order.
  void add(ConstView array, int shard);
  /// Enqueues, after the last shard: the mean of all ranks' shards, on every rank, in float32.
  /// Valid until the next add().
  View mean();

  /// What mean() exchanges.
  ConstView sum() const { return level(0); }

 private:
  View level(std::size_t index) const { return levels_.at(index).view(DataType::float32); }
  void add_up_ranks();
  /// Enqueues, with the rank whose number differs in `bit`: sends one view and receives another.
  void swap(ConstView send, View recv, int bit);

  Device& device_;
  Stream& stream_;
  Communicator& ranks_;
  std::size_t count_;
  int shards_;
  std::vector<Buffer>
      levels_;  // sums of subtrees whose sibling is still to come, larger ones first
  Buffer received_;
};

}  // namespace shakedown::training
