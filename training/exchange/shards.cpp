#include "training/exchange/shards.hpp"

#include "common/kernels.hpp"

namespace shakedown::training {
namespace {

std::size_t equal_part(std::size_t count, int ranks) {
  return count / kDecayChunk / static_cast<std::size_t>(ranks) * kDecayChunk;
}

}  // namespace

Range shard_of(Range range, int rank, int ranks) {
  const std::size_t part = equal_part(range.count(), ranks);
  const std::size_t begin = range.begin + static_cast<std::size_t>(rank) * part;
  return {begin, rank + 1 == ranks ? range.end : begin + part};
}

void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream) {
  const std::size_t part = equal_part(whole.count, ranks.size());
  const std::size_t divided = part * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (part > 0)
      ranks.reduce_scatter(whole.slice(0, divided), own.slice(0, part), Reduction::avg, stream);
    if (divided < whole.count)
      ranks.reduce(whole.slice(divided, whole.count - divided),
                   ranks.rank() == last ? own.slice(part, own.count - part) : View(),
                   Reduction::avg, last, stream);
  });
}

void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream) {
  const std::size_t part = equal_part(whole.count, ranks.size());
  const std::size_t divided = part * static_cast<std::size_t>(ranks.size());
  const int last = ranks.size() - 1;
  ranks.group([&] {
    if (part > 0) ranks.all_gather(own.slice(0, part), whole.slice(0, divided), stream);
    if (divided < whole.count) {
      const View rest = whole.slice(divided, whole.count - divided);
      ranks.broadcast(ranks.rank() == last ? own.slice(part, own.count - part) : ConstView(rest),
                      rest, last, stream);
    }
  });
}

}  // namespace shakedown::training
