// How much of an exchange hides behind backward, as a schedule over numbers. Times are ms since
// backward began.
#pragma once

#include <span>
#include <vector>

#include "training/predict/link_cost.hpp"

namespace shakedown::training {

/// Gradients that are exchanged as one, once the last of them is ready.
struct ReadyBucket {
  double bytes = 0;
  double ready_ms = 0;
};

struct BucketTimes {
  double start_ms = 0;
  double end_ms = 0;
  double hidden_ms = 0;   // of the exchange, while backward ran
  double exposed_ms = 0;  // after it
};

struct Overlap {
  std::vector<BucketTimes> buckets;
  double hidden_ms = 0;
  double exposed_ms = 0;  // by how much the exchange outlasts backward
};

/// One exchange at a time, in the order given, as on one communication stream (PyTorch Distributed,
/// Li et al. 2020): start_i = max(ready_i, end_{i-1}). `time` is of one bucket.
Overlap overlap_buckets(std::span<const ReadyBucket> buckets, double backward_ms,
                        const ExchangeTime& time);

/// Weights that are gathered block by block, in forward and again in backward, where gradients are
/// scattered too (PyTorch FSDP, Zhao et al. 2023): one communication stream, each gather
/// issued when the block before begins to compute. `blocks` come in backward's order, a block's
/// share of either direction is its share of backward. Without times of single blocks.
Overlap overlap_gathered(std::span<const ReadyBucket> blocks, double forward_ms, double backward_ms,
                         const ExchangeTime& gather, const ExchangeTime& scatter);

}  // namespace shakedown::training
