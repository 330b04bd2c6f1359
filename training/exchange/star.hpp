// Gradients sent to rank 0 and weights sent back, rank by rank: what a parameter server's network
// sees.
#pragma once

#include <optional>

#include "resnet/weights.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

// Gradients received from other ranks by sends and receives, and their average.

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

/// Rank 0 updates everything, the others nothing.
Plan plan_of_star(const StrategyContext& context);

class Star {
 public:
  /// Between rank 0 and all others, pieces of at most `largest` elements at a time.
  Star(const StrategyContext& context, std::size_t largest);

  bool at_centre() const { return context_.world.rank() == 0; }

  /// Enqueues. To be grouped with what is to go on at the same time.
  void push(Range piece);
  void pull(Range piece);

  /// At the centre, after push(piece): see ReceivedGradients.
  Share average(Range piece, bool with_own) { return received_->average(piece, with_own); }

 private:
  StrategyContext context_;
  std::optional<ReceivedGradients> received_;  // at the centre
};

}  // namespace shakedown::training
