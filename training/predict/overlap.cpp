#include "training/predict/overlap.hpp"

#include <algorithm>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

/// The two streams of a rank that gathers a block's weights before it computes with them.
struct GatheredStreams {
  double communication_ms = 0;  // when the stream is next free
  double computed_ms = 0;       // when the block before has been computed
  double began_ms = 0;          // when it began
  double busy_ms = 0;           // of communication

  void communicate(double earliest_ms, double ms) {
    communication_ms = std::max(communication_ms, earliest_ms) + ms;
    busy_ms += ms;
  }
  void compute(double ms, double gathered_ms) {
    began_ms = std::max(computed_ms, gathered_ms);
    computed_ms = began_ms + ms;
  }
};

}  // namespace

Overlap overlap_buckets(std::span<const ReadyBucket> buckets, double backward_ms,
                        const ExchangeTime& time) {
  Overlap overlap;
  double free_ms = 0;
  for (const ReadyBucket& bucket : buckets) {
    BucketTimes at;
    at.start_ms = std::max(bucket.ready_ms, free_ms);
    at.end_ms = free_ms = at.start_ms + time.ms(bucket.bytes);
    at.exposed_ms = std::max(0.0, at.end_ms - std::max(at.start_ms, backward_ms));
    at.hidden_ms = at.end_ms - at.start_ms - at.exposed_ms;
    overlap.hidden_ms += at.hidden_ms;
    overlap.buckets.push_back(at);
  }
  overlap.exposed_ms = std::max(0.0, free_ms - backward_ms);
  return overlap;
}

Overlap overlap_gathered(std::span<const ReadyBucket> blocks, double forward_ms, double backward_ms,
                         const ExchangeTime& gather, const ExchangeTime& scatter) {
  ENSURE(backward_ms > 0 && forward_ms >= 0, "a step computes");
  const auto backward_of = [&](std::size_t i) {
    return blocks[i].ready_ms - (i > 0 ? blocks[i - 1].ready_ms : 0);
  };
  GatheredStreams forward;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    forward.communicate(forward.began_ms, gather.ms(blocks[i].bytes));
    forward.compute(backward_of(i) * forward_ms / backward_ms, forward.communication_ms);
  }
  GatheredStreams backward;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    backward.communicate(backward.began_ms, gather.ms(blocks[i].bytes));
    const double gathered_ms = backward.communication_ms;
    // The gather is asked for when the block before begins, its gradients when that one ends.
    if (i > 0) backward.communicate(backward.computed_ms, scatter.ms(blocks[i - 1].bytes));
    backward.compute(backward_of(i), gathered_ms);
  }
  if (!blocks.empty()) backward.communicate(backward.computed_ms, scatter.ms(blocks.back().bytes));

  // What of either direction is no block's runs after the last one.
  const double blocks_ms = blocks.empty() ? 0 : blocks.back().ready_ms;
  const double forward_end_ms = forward.computed_ms + forward_ms * (1 - blocks_ms / backward_ms);
  const double backward_end_ms =
      std::max(backward.computed_ms + backward_ms - blocks_ms, backward.communication_ms);
  Overlap overlap;
  overlap.exposed_ms = forward_end_ms - forward_ms + backward_end_ms - backward_ms;
  overlap.hidden_ms = std::max(0.0, forward.busy_ms + backward.busy_ms - overlap.exposed_ms);
  return overlap;
}

}  // namespace shakedown::training
