// Buckets exchanged on a stream of their own while backward goes on.
#pragma once

#include "training/buckets.hpp"
#include "training/strategy.hpp"

namespace shakedown {

class BucketStream {
 public:
  explicit BucketStream(const StrategyContext& context)
      : compute_(context.compute),
        table_(context.table),
        progress_(ddp_buckets(context.table, context.options.first_bucket_mb,
                              context.options.bucket_cap_mb)),
        stream_(context.device.make_stream(StreamPriority::high)),
        ready_(context.device.make_event()),
        done_(context.device.make_event()) {}

  const std::vector<Range>& buckets() const { return progress_.buckets(); }

  /// Calls exchange(bucket, stream) for each bucket that this block completes.
  template <class Exchange>
  void gradients_ready(int block, Exchange&& exchange) {
    const std::vector<Range> complete = progress_.finished(table_.block_range(block));
    if (complete.empty()) return;
    ready_->record(compute_);
    stream_->wait(*ready_);
    for (const Range& bucket : complete) exchange(bucket, *stream_);
  }

  /// The compute stream waits for all of them.
  void join() {
    done_->record(*stream_);
    compute_.wait(*done_);
    progress_.restart();
  }

 private:
  Stream& compute_;
  const ParameterTable& table_;
  BucketProgress progress_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
};

}  // namespace shakedown
