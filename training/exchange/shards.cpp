#include "training/exchange/shards.hpp"

#include "common/kernels.hpp"

namespace shakedown::training {
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
