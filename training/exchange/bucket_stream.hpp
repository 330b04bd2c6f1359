// Buckets exchanged on a separate stream during backward.
#pragma once

#include "training/exchange/exchange_stream.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class BucketStream {
 public:
  /// `what` its exchange is called on the timeline.
  BucketStream(const StrategyContext& context, const char* what)
      : context_(context),
        what_(what),
        type_(exchanged_type(context.options, context.weights.type())),
        progress_(ddp_buckets(context.table, context.options.small_bucket_mb,
                              context.options.bucket_cap_mb, small_bucket(context.options))),
        stream_(context),
        ready_(context.device.make_event()),
        done_(context.device.make_event()) {}

  const std::vector<Range>& buckets() const { return progress_.buckets(); }

  /// Calls exchange(bucket, stream) for each bucket that this block completes.
  template <class Exchange>
  void gradients_ready(int block, Exchange&& exchange) {
    const std::vector<Range> complete = progress_.finished(context_.table.block_range(block));
    if (complete.empty()) return;
    ready_->record(context_.compute);
    stream_->wait(*ready_);
    for (const Range& bucket : complete) {
      const auto bytes = static_cast<double>(bucket.count() * size_of(type_));
      context_.timeline.exchange(what_, bytes, *stream_, [&] { exchange(bucket, *stream_); });
    }
    context_.timeline.mark(Phase::exchange);
  }

  /// The compute stream waits for all of them.
  void join() {
    done_->record(*stream_);
    context_.compute.wait(*done_);
    progress_.restart();
  }

 private:
  StrategyContext context_;
  const char* what_;
  DataType type_;
  BucketProgress progress_;
  ExchangeStream stream_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
};

}  // namespace shakedown::training
