// Buckets exchanged on a separate stream during backward.
#pragma once

#include <array>

#include "common/kernels.hpp"
#include "resnet/weights.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

// The stream that exchanges while another computes: or, without overlap, that one itself.

class ExchangeStream {
 public:
  explicit ExchangeStream(const StrategyContext& context)
      : own_(context.options.no_overlap ? nullptr
                                        : context.device.make_stream(StreamPriority::high)),
        stream_(own_ ? *own_ : context.compute) {}

  Stream& operator*() const { return stream_; }
  Stream* operator->() const { return &stream_; }

 private:
  std::unique_ptr<Stream> own_;
  Stream& stream_;
};

inline std::vector<Range> buckets_of(const StrategyContext& context) {
  return ddp_buckets(context.table, context.options.small_bucket_mb, context.options.bucket_cap_mb,
                     small_bucket(context.options));
}

class BucketStream {
 public:
  /// `what` its exchange is called in a traced step.
  BucketStream(const StrategyContext& context, const char* what)
      : context_(context),
        what_(what),
        type_(exchanged_type(context.options, context.weights.type())),
        progress_(buckets_of(context)),
        stream_(context),
        ready_(context.device.make_event()),
        done_(context.device.make_event()) {}

  /// Calls exchange(bucket, stream) for each bucket that this block completes.
  template <class Exchange>
  void gradients_ready(int block, Exchange&& exchange) {
    const std::vector<Range> complete = progress_.finished(context_.table.block_range(block));
    if (complete.empty()) return;
    ready_->record(context_.compute);
    stream_->wait(*ready_);
    for (const Range& bucket : complete) {
      const auto bytes = static_cast<double>(bucket.count() * size_of(type_));
      context_.recorder.exchange(what_, bytes, *stream_, [&] { exchange(bucket, *stream_); });
    }
    context_.recorder.mark(Phase::exchange);
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

// The gradients that ddp and all-reduce exchange: the network's own, or a conversion of them in
// memory of its own, in another type.

class ExchangedGradients {
 public:
  explicit ExchangedGradients(const StrategyContext& context) : context_(context) {
    const DataType computed = context.weights.type();
    const DataType type = exchanged_type(context.options, computed);
    if (type != computed)
      staging_ =
          FlatBuffer(context.device, context.compute, type, whole_weights(context.table).gradients);
  }

  /// The gradients exchanged.
  View at(Range range) const {
    return staging_.empty() ? context_.weights.gradients(range) : staging_.at(range);
  }

  /// Enqueues the all-reduce, with the conversion that it takes.
  void all_reduce(Range range, Stream& stream) const {
    const View computed = context_.weights.gradients(range);
    const View exchanged = at(range);
    if (!staging_.empty()) context_.device.kernels().convert(computed, exchanged, stream);
    context_.world.all_reduce(exchanged, exchanged, Reduction::avg, stream);
  }

  /// The shares of a rank that updates everything.
  std::vector<Share> shares() const {
    const Range all = context_.all();
    return {{all, at(all)}};
  }

 private:
  StrategyContext context_;
  FlatBuffer staging_;  // empty: exchanged in place
};

// Gradients that are not kept: blocks share two buffers in turn, and each block's are reduced to
// shards while the next block's are computed.

/// A block's weights or gradients are in buffer block % kBuffers: one is used while another moves.
inline constexpr std::size_t kBuffers = 2;

/// The range of every block, in the order of the blocks.
std::vector<Range> block_ranges(const ParameterTable& table);

class BlockGradients {
 public:
  /// `stream` carries the exchange.
  BlockGradients(const StrategyContext& context, std::vector<Range> owned, Stream& stream);

  /// Before backward of this block: what its buffer held is exchanged.
  void before_backward(int block);
  void gradients_ready(int block);
  /// The compute stream waits for all; this rank's shards.
  std::vector<Share> finish();

 private:
  StrategyContext context_;
  Stream& stream_;
  FlatBuffer shards_;
  std::unique_ptr<Event> ready_;
  std::array<std::unique_ptr<Event>, kBuffers> reduced_;
};

}  // namespace shakedown::training
