#include "training/exchange/buckets.hpp"

#include <algorithm>

#include "common/ensure.hpp"
#include "common/kernels.hpp"

namespace shakedown::training {

std::vector<std::size_t> capped_ends(std::span<const double> bytes, double first_cap, double cap) {
  std::vector<std::size_t> ends;
  double open = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    open += bytes[i];
    if (open < (ends.empty() ? first_cap : cap) && i + 1 < bytes.size()) continue;
    ends.push_back(i + 1);
    open = 0;
  }
  return ends;
}

std::vector<std::size_t> bucket_ends(std::span<const double> bytes, double small_cap, double cap,
                                     SmallBucket small) {
  if (small == SmallBucket::first) return capped_ends(bytes, small_cap, cap);
  const std::vector<double> reversed(bytes.rbegin(), bytes.rend());
  std::vector<std::size_t> ends;  // the end of a bucket in reverse order is the begin of the next
  for (const std::size_t end : capped_ends(reversed, small_cap, cap))
    ends.push_back(bytes.size() - end);
  std::reverse(ends.begin(), ends.end());
  if (ends.empty()) return ends;
  ends.erase(ends.begin());  // the first one's begin
  ends.push_back(bytes.size());
  return ends;
}

std::vector<Range> ddp_buckets(const ParameterTable& table, double small_cap_mb, double cap_mb,
                               SmallBucket small) {
  const auto& parameters = table.parameters();
  std::vector<double> bytes;  // in the flat order, which is the reverse
  for (std::size_t i = parameters.size(); i-- > 0;) {
    bytes.push_back(static_cast<double>(parameters[i].count * sizeof(float)));
  }
  std::vector<Range> buckets;
  std::size_t begin = 0;
  const auto ends = bucket_ends(bytes, small_cap_mb * kMebibyte, cap_mb * kMebibyte, small);
  for (const std::size_t end : ends) {
    const bool last = end == parameters.size();
    const std::size_t stop =
        last ? table.stored_count() : parameters[parameters.size() - 1 - end].offset;
    buckets.push_back({begin, stop});
    begin = stop;
  }
  return buckets;
}

void BucketProgress::restart() {
  next_ = 0;
  end_ = 0;
}

std::vector<Range> BucketProgress::finished(Range range) {
  ENSURE(range.begin == end_, "gradients finish in the flat buffer's order");
  end_ = range.end;
  std::vector<Range> done;
  while (next_ < buckets_.size() && buckets_[next_].end <= end_) done.push_back(buckets_[next_++]);
  return done;
}

namespace {

std::size_t shard_count(std::size_t count, int ranks) {
  return count / kFlatAlignment / static_cast<std::size_t>(ranks) * kFlatAlignment;
}

}  // namespace

Range shard_of(Range range, int rank, int ranks) {
  const std::size_t shard = shard_count(range.count(), ranks);
  const std::size_t begin = range.begin + static_cast<std::size_t>(rank) * shard;
  return {begin, rank + 1 == ranks ? range.end : begin + shard};
}

void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream) {
  const std::size_t shard = shard_count(whole.count, ranks.size());
  const std::size_t divided = shard * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (shard > 0)
      ranks.reduce_scatter(whole.slice(0, divided), own.slice(0, shard), Reduction::avg, stream);
    if (divided < whole.count)
      ranks.reduce(whole.slice(divided, whole.count - divided),
                   ranks.rank() == last ? own.slice(shard, own.count - shard) : View(),
                   Reduction::avg, last, stream);
  });
}

void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream) {
  const std::size_t shard = shard_count(whole.count, ranks.size());
  const std::size_t divided = shard * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (shard > 0) ranks.all_gather(own.slice(0, shard), whole.slice(0, divided), stream);
    if (divided < whole.count) {
      const View rest = whole.slice(divided, whole.count - divided);
      ranks.broadcast(ranks.rank() == last ? own.slice(shard, own.count - shard) : ConstView(rest),
                      rest, last, stream);
    }
  });
}

}  // namespace shakedown::training
