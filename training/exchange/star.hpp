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
  /// Of this range from `senders` ranks.
  ReceivedGradients(const StrategyContext& context, int senders, Range range);

  /// Where a sender's are received; senders count from 0.
  View from(int sender) const;
  /// Enqueues: this rank's own gradients become the average over the senders, and, `with_own`, of
  /// what they were.
  Share average(bool with_own) const;

 private:
  StrategyContext context_;
  int senders_;
  Range range_;
  Buffer received_;
  Buffer sum_;  // float32, where gradients are not
};

/// Rank 0 updates everything, the others nothing.
Plan plan_of_star(const StrategyContext& context);

/// Between rank 0 and all others.
class Star {
 public:
  explicit Star(const StrategyContext& context);

  bool at_centre() const { return context_.world.rank() == 0; }
  /// Enqueues the exchange of all gradients.
  void push() const;
  /// At the centre, after push(): see ReceivedGradients.
  Share average(bool with_own) const { return received_->average(with_own); }

 private:
  StrategyContext context_;
  std::optional<ReceivedGradients> received_;  // at the centre
};

}  // namespace shakedown::training
