#include "training/predict/bucket_plan.hpp"

#include <algorithm>
#include <limits>

#include "common/error.hpp"

namespace shakedown::training {
namespace {

BucketPlan plan_of(std::span<const ReadyGradient> gradients, std::vector<std::size_t> ends,
                   double backward_ms, const ExchangeTime& time) {
  Overlap overlap = overlap_buckets(group(gradients, ends), backward_ms, time);
  return {std::move(ends), std::move(overlap)};
}

}  // namespace

std::vector<ReadyBucket> group(std::span<const ReadyGradient> gradients,
                               std::span<const std::size_t> ends) {
  std::vector<ReadyBucket> buckets;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    ENSURE(begin < end && end <= gradients.size(), "a bucket's gradients follow the last one's");
    ReadyBucket bucket;
    for (const ReadyGradient& gradient : gradients.subspan(begin, end - begin)) {
      bucket.bytes += gradient.bytes;
      bucket.ready_ms = std::max(bucket.ready_ms, gradient.ready_ms);
    }
    buckets.push_back(bucket);
    begin = end;
  }
  ENSURE(begin == gradients.size(), "every gradient is in a bucket");
  return buckets;
}

std::vector<std::size_t> block_ends(std::span<const ReadyGradient> gradients) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 1; i <= gradients.size(); ++i) {
    if (i == gradients.size() || gradients[i].block != gradients[i - 1].block) ends.push_back(i);
  }
  return ends;
}

BucketPlan capped_plan(std::span<const ReadyGradient> gradients, double small_cap_bytes,
                       double cap_bytes, double backward_ms, const ExchangeTime& time,
                       SmallBucket small) {
  std::vector<double> bytes;
  for (const ReadyGradient& gradient : gradients) bytes.push_back(gradient.bytes);
  return plan_of(gradients, bucket_ends(bytes, small_cap_bytes, cap_bytes, small), backward_ms,
                 time);
}

BucketPlan best_plan(std::span<const ReadyGradient> gradients, double backward_ms,
                     const ExchangeTime& time) {
  const std::size_t n = gradients.size();
  std::vector<double> end_ms(n + 1, 0);           // of the best plan of the first so many gradients
  std::vector<std::size_t> last_begin(n + 1, 0);  // where its last bucket begins
  for (std::size_t end = 1; end <= n; ++end) {
    end_ms[end] = std::numeric_limits<double>::infinity();
    ReadyBucket last;
    for (std::size_t begin = end; begin-- > 0;) {
      last.bytes += gradients[begin].bytes;
      last.ready_ms = std::max(last.ready_ms, gradients[begin].ready_ms);
      const double ms = std::max(last.ready_ms, end_ms[begin]) + time.ms(last.bytes);
      if (ms > end_ms[end]) continue;
      end_ms[end] = ms;
      last_begin[end] = begin;
    }
  }
  std::vector<std::size_t> ends;
  for (std::size_t end = n; end > 0; end = last_begin[end]) ends.push_back(end);
  std::reverse(ends.begin(), ends.end());
  return plan_of(gradients, std::move(ends), backward_ms, time);
}

}  // namespace shakedown::training
