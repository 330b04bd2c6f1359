#include "training/predict/overlap.hpp"

#include <algorithm>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

/// The buckets that end there, each one past its last gradient.
std::vector<ReadyBucket> group(std::span<const ReadyGradient> gradients,
                               std::span<const std::size_t> ends) {
  std::vector<ReadyBucket> buckets;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    ReadyBucket& bucket = buckets.emplace_back();
    for (const ReadyGradient& gradient : gradients.subspan(begin, end - begin)) {
      bucket.bytes += gradient.bytes;
      bucket.ready_ms = std::max(bucket.ready_ms, gradient.ready_ms);
    }
    begin = end;
  }
  return buckets;
}

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

std::vector<ReadyBucket> in_buckets(std::span<const ReadyGradient> gradients,
                                    double small_cap_bytes, double cap_bytes, SmallBucket small) {
  std::vector<double> bytes;
  for (const ReadyGradient& gradient : gradients) bytes.push_back(gradient.bytes);
  return group(gradients, bucket_ends(bytes, small_cap_bytes, cap_bytes, small));
}

std::vector<ReadyBucket> in_blocks(std::span<const ReadyGradient> gradients) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 1; i <= gradients.size(); ++i)
    if (i == gradients.size() || gradients[i].block != gradients[i - 1].block) ends.push_back(i);
  return group(gradients, ends);
}

Overlap overlap_buckets(std::span<const ReadyBucket> buckets, double backward_ms,
                        const ExchangeTime& time) {
  double busy_ms = 0;
  double free_ms = 0;
  for (const ReadyBucket& bucket : buckets) {
    const double ms = time.ms(bucket.bytes);
    free_ms = std::max(bucket.ready_ms, free_ms) + ms;
    busy_ms += ms;
  }
  // No gradient is ready after backward's end, so what runs after it runs without a gap.
  const double exposed_ms = std::max(0.0, free_ms - backward_ms);
  return {busy_ms - exposed_ms, exposed_ms};
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
    // The gather is enqueued when the previous block begins, the gradients when that block ends.
    if (i > 0) backward.communicate(backward.computed_ms, scatter.ms(blocks[i - 1].bytes));
    backward.compute(backward_of(i), gathered_ms);
  }
  if (!blocks.empty()) backward.communicate(backward.computed_ms, scatter.ms(blocks.back().bytes));

  // The part of either direction that belongs to no block runs after the last one.
  const double blocks_ms = blocks.empty() ? 0 : blocks.back().ready_ms;
  const double forward_end_ms = forward.computed_ms + forward_ms * (1 - blocks_ms / backward_ms);
  const double backward_end_ms =
      std::max(backward.computed_ms + backward_ms - blocks_ms, backward.communication_ms);
  const double exposed_ms = forward_end_ms - forward_ms + backward_end_ms - backward_ms;
  return {std::max(0.0, forward.busy_ms + backward.busy_ms - exposed_ms), exposed_ms};
}

}  // namespace shakedown::training
