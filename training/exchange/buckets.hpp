// Gradients grouped into buckets: contiguous ranges of the flat buffer, exchanged as one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/communicator.hpp"
#include "resnet/architecture.hpp"

namespace shakedown::training {

inline constexpr double kMebibyte = 1 << 20;

/// PyTorch DDP's rule: parameters in the order in which backward finishes them are added to a
/// bucket until it has `first_cap` bytes or more (the first), or `cap` (the others); parameters
/// are never split. Returns of each bucket the index one past its last parameter.
std::vector<std::size_t> capped_ends(std::span<const double> bytes, double first_cap, double cap);

/// Which of the buckets is the small one: the first, PyTorch's default, or the last to become
/// ready, which backward cannot hide (PyTorch's DDP_SET_LAST_BUCKET_CAP=1).
enum class SmallBucket { first, last };

/// The rule with the small bucket at either end. `last`: buckets are formed from the last parameter
/// on, so that the first one has what remains.
std::vector<std::size_t> bucket_ends(std::span<const double> bytes, double small_cap, double cap,
                                     SmallBucket small);

/// Its ranges of the flat buffer, caps in MiB. Bytes are the payload's in float32, as PyTorch
/// counts them.
std::vector<Range> ddp_buckets(const ParameterTable& table, double small_cap_mb, double cap_mb,
                               SmallBucket small = SmallBucket::first);

/// Follows backward through the flat buffer and reports the buckets that have become complete.
class BucketProgress {
 public:
  explicit BucketProgress(std::vector<Range> buckets) : buckets_(std::move(buckets)) {}

  const std::vector<Range>& buckets() const { return buckets_; }
  void restart();
  /// `range` continues what was finished before. Returns the buckets that it completes, in order.
  std::vector<Range> finished(Range range);

 private:
  std::vector<Range> buckets_;
  std::size_t next_ = 0;  // first bucket that is not complete
  std::size_t end_ = 0;   // gradients before this element are finished
};

// A range of the flat buffers sharded over ranks: what each rank owns, and the two exchanges.

/// Equal shards in multiples of kFlatAlignment elements; the last rank's also has what they leave.
Range shard_of(Range range, int rank, int ranks);

/// Enqueues: `own` is this rank's shard of the average over the ranks of `whole`, in place or out
/// of place.
void reduce_to_shards(Communicator& ranks, ConstView whole, View own, Stream& stream);
/// Enqueues: `whole` is every rank's shard, of which this rank brings `own`, in place or out of
/// place.
void gather_shards(Communicator& ranks, ConstView own, View whole, Stream& stream);

}  // namespace shakedown::training
