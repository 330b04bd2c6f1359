// A range of the flat buffers sharded over ranks: what each rank owns, and the two exchanges.
#pragma once

#include "common/communicator.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {

/// Equal shards in multiples of kFlatAlignment elements; the last rank's also has what they leave.
Range shard_of(Range range, int rank, int ranks);

/// Enqueues: `own` is this rank's shard of the average over the ranks of `whole`, in place or out
/// of place.
void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream);
/// Enqueues: `whole` is every rank's shard, of which this rank brings `own`, in place or out of
/// place.
void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream);

}  // namespace shakedown::training
