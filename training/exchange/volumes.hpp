// The exchange of a step as data: from a strategy's transfers follow the bytes that a rank sends,
// with which measured traffic is compared, and the time that training/predict estimates.
#pragma once

#include <vector>

#include "common/types.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {

/// Bytes that a rank exchanges in a step, as they travel.
struct StepVolume {
  double gradients = 0;
  double weights = 0;
  // Bytes of the weights of the network's first two blocks, and of its last two.
  double first_blocks = 0;
  double last_blocks = 0;
  int accumulate = 1;  // micro-batches
};
/// The volume of a network whose gradients and weights are exchanged in these types.
StepVolume volume_of(const ParameterTable& table, DataType gradients, DataType weights,
                     int accumulate);

enum class Volume { gradients, weights, inputs };

/// Ways in which all ranks exchange a volume. The first two are collectives, counted as their
/// bandwidth-optimal rings (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009); the others
/// are sends and receives, after which the receiver averages gradients itself.
enum class Pattern {
  all_reduce,  // two passes
  pass,        // a reduce-scatter or all-gather
  shards,      // each rank sends every other rank its shard
  star,        // gradients and inputs between rank 0 and each other rank
  chain,       // weights from rank 0 along a chain, which the last rank ends
};
/// Units of an exchange, and when they are exchanged. `whole` and `partitions` follow backward; the
/// others overlap it.
enum class Pieces {
  whole,
  partitions,       // --ps-partition-mb: a piece is pulled while the next is pushed
  buckets,          // of --bucket-cap-mb
  blocks,           // of the network
  gathered_blocks,  // the same, and a block's weights are gathered before its forward and backward
};

struct Transfer {
  Volume volume;
  Pattern pattern;
  Pieces pieces = Pieces::whole;
  bool each_micro_batch = false;  // else once per update

  bool overlaps() const { return pieces > Pieces::partitions; }
  bool by_collective() const { return pattern <= Pattern::pass; }
};

/// Bytes that `rank` of `ranks` sends. Inputs are not counted.
double sent_in(const std::vector<Transfer>& transfers, const StepVolume& step, int ranks, int rank);

}  // namespace shakedown::training
