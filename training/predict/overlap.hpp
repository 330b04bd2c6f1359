// How much of an exchange backward hides, as a schedule over numbers. Times are ms since backward
// began.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "training/exchange/buckets.hpp"
#include "training/predict/link_cost.hpp"

namespace shakedown::training {

/// A parameter's gradient. Lists of them are in the order in which backward finishes them.
struct ReadyGradient {
  double bytes = 0;     // of the payload in float32
  double ready_ms = 0;  // since backward began
  int block = 0;        // of the network: gradients of one block are neighbours
};

/// Gradients that are exchanged as one, once the last of them is ready.
struct ReadyBucket {
  double bytes = 0;
  double ready_ms = 0;
};
/// Buckets by PyTorch's rule (bucket_ends), caps in bytes.
std::vector<ReadyBucket> in_buckets(std::span<const ReadyGradient> gradients,
                                    double small_cap_bytes, double cap_bytes, SmallBucket small);
/// Each block of the network on its own.
std::vector<ReadyBucket> in_blocks(std::span<const ReadyGradient> gradients);

struct Overlap {
  double hidden_ms = 0;   // of the exchange, while a rank computes
  double exposed_ms = 0;  // by how much the exchange makes the step longer
};

/// One exchange at a time, in the order given, as on one communication stream (PyTorch Distributed,
/// Li et al. 2020): start_i = max(ready_i, end_{i-1}). `time` is of one bucket.
Overlap overlap_buckets(std::span<const ReadyBucket> buckets, double backward_ms,
                        const ExchangeTime& time);

/// Weights that are gathered block by block, in forward and again in backward, where gradients are
/// scattered too (PyTorch FSDP, Zhao et al. 2023): one communication stream, each gather
/// issued when the block before begins to compute. `blocks` come in backward's order, a block's
/// share of either direction is its share of backward.
Overlap overlap_gathered(std::span<const ReadyBucket> blocks, double forward_ms, double backward_ms,
                         const ExchangeTime& gather, const ExchangeTime& scatter);

}  // namespace shakedown::training
