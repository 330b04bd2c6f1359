// Buckets in the order in which backward finishes them, all-reduced on a stream of their own while
// backward goes on: PyTorch's DistributedDataParallel.
#include "training/buckets.hpp"
#include "training/strategy.hpp"

namespace shakedown {
namespace {

std::size_t mebibytes(double mib) { return static_cast<std::size_t>(mib * 1048576.0); }

class Ddp final : public Strategy {
 public:
  explicit Ddp(const StrategyContext& context)
      : context_(context),
        progress_(ddp_buckets(context.table, mebibytes(context.options.first_bucket_mb),
                              mebibytes(context.options.bucket_cap_mb))),
        stream_(context.device.make_stream(StreamPriority::high)),
        ready_(context.device.make_event()),
        done_(context.device.make_event()) {}

  void gradients_ready(Range range) override {
    const std::vector<Range> complete = progress_.finished(range);
    if (complete.empty()) return;
    ready_->record(context_.compute);
    stream_->wait(*ready_);
    for (const Range& bucket : complete) {
      const View view = context_.gradients.slice(bucket.begin, bucket.count());
      context_.world.all_reduce(view, view, Reduction::avg, *stream_);
    }
  }

  std::vector<Range> finish() override {
    done_->record(*stream_);
    context_.compute.wait(*done_);
    progress_.restart();
    return {{0, context_.gradients.count}};
  }

  std::vector<Range> buckets() const override { return progress_.buckets(); }

 private:
  StrategyContext context_;
  BucketProgress progress_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> ready_;
  std::unique_ptr<Event> done_;
};

}  // namespace

std::unique_ptr<Strategy> make_ddp(const StrategyContext& context) {
  return std::make_unique<Ddp>(context);
}

}  // namespace shakedown
