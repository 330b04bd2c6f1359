#include "training/exchange/bucket_stream.hpp"

namespace shakedown::training {

std::vector<Range> block_ranges(const ParameterTable& table) {
  std::vector<Range> ranges;
  for (int block = 0; block < table.blocks(); ++block) ranges.push_back(table.block_range(block));
  return ranges;
}

BlockGradients::BlockGradients(const StrategyContext& context, std::vector<Range> owned,
                               Stream& stream)
    : context_(context),
      stream_(stream),
      shards_(context.device, context.compute, context.weights.type(), packed(owned)),
      ready_(context.device.make_event()) {
  for (auto& event : reduced_) {
    event = context.device.make_event();
    event->record(context.compute);
  }
}

void BlockGradients::before_backward(int block) {
  context_.compute.wait(*reduced_[static_cast<std::size_t>(block) % kBuffers]);
  context_.recorder.mark(Phase::exchange);
  for (const Range& gap : context_.table.gaps(block)) {  // backward does not write there
    const View padding = context_.weights.gradients(gap);
    context_.device.zero(padding.data, padding.bytes(), context_.compute);
  }
}

void BlockGradients::gradients_ready(int block) {
  ready_->record(context_.compute);
  stream_.wait(*ready_);
  const Range range = context_.table.block_range(block);
  const Range own = shard_of(range, context_.world.rank(), context_.world.size());
  const View gradients = context_.weights.gradients(range);
  context_.recorder.exchange(
      "reduce_scatter", static_cast<double>(gradients.bytes()), stream_,
      [&] { reduce_to_shards(context_.world, gradients, shards_.at(own), stream_); });
  reduced_[static_cast<std::size_t>(block) % kBuffers]->record(stream_);
  context_.recorder.mark(Phase::exchange);
}

std::vector<Share> BlockGradients::finish() {
  for (const auto& event : reduced_) context_.compute.wait(*event);
  std::vector<Share> shares;
  for (const PlacedRange& placed : shards_.layout())
    shares.push_back({placed.range, shards_.at(placed.range)});
  return shares;
}

}  // namespace shakedown::training
