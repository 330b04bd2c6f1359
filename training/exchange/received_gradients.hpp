// Gradients received from other ranks by sends and receives, and their average.
#pragma once

#include "resnet/flat_buffer.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class ReceivedGradients {
 public:
  /// Receives from `senders`, in pieces of at most `largest` elements.
  ReceivedGradients(const StrategyContext& context, int senders, std::size_t largest);

  /// Where a sender's piece is received; senders count from 0.
  View from(int sender, Range piece) const;
  /// Enqueues: this rank's own gradients of the piece become the average over the senders, and,
  /// `with_own`, of what they were.
  Share average(Range piece, bool with_own) const;

 private:
  StrategyContext context_;
  int senders_;
  std::size_t largest_;
  Buffer received_;
  Buffer sum_;  // float32, where gradients are not
};

}  // namespace shakedown::training
