// Gradients that are not kept: blocks share two buffers in turn, and each block's are reduced to
// shards while the next block's are computed.
#pragma once

#include <array>

#include "resnet/flat_buffer.hpp"
#include "training/exchange/shards.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

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
