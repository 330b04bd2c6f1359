// Which gradients to exchange as one: PyTorch's rule, and what would have been best.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "training/exchange/buckets.hpp"
#include "training/predict/overlap.hpp"

namespace shakedown::training {

inline constexpr double kMebibyte = 1 << 20;

/// A parameter's gradient. Lists of them are in the order in which backward finishes them.
struct ReadyGradient {
  double bytes = 0;     // of the payload in float32
  double ready_ms = 0;  // since backward began
  int block = 0;        // of the network: gradients of one block are neighbours
};

struct BucketPlan {
  std::vector<std::size_t> ends;  // of each bucket: one past its last gradient
  Overlap overlap;
};

/// The buckets that end there: bytes added up, ready with the last of their gradients.
std::vector<ReadyBucket> group(std::span<const ReadyGradient> gradients,
                               std::span<const std::size_t> ends);
/// Ends of the network's blocks, as a plan's.
std::vector<std::size_t> block_ends(std::span<const ReadyGradient> gradients);

/// ddp_buckets' rule with caps in bytes, and what it leaves exposed.
BucketPlan capped_plan(std::span<const ReadyGradient> gradients, double small_cap_bytes,
                       double cap_bytes, double backward_ms, const ExchangeTime& time,
                       SmallBucket small = SmallBucket::first);

/// The contiguous partition whose last bucket ends first; of equals, one with large late buckets.
/// Exact under the model of overlap_buckets, by dynamic programming in n^2 / 2 steps: a bucket that
/// ends earlier never delays the next, so the best plan of all gradients begins with the best plan
/// of those before its last bucket.
BucketPlan best_plan(std::span<const ReadyGradient> gradients, double backward_ms,
                     const ExchangeTime& time);

}  // namespace shakedown::training
