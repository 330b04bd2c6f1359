// Gradients sent to rank 0 and weights sent back, rank by rank: what a parameter server's network
// sees.
#pragma once

#include <optional>

#include "training/exchange/received_gradients.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class Star {
 public:
  /// Between rank 0 and all others, pieces of at most `largest` elements at a time.
  Star(const StrategyContext& context, std::size_t largest);

  bool at_centre() const { return context_.world.rank() == 0; }

  /// Enqueues. To be grouped with what is to go on at the same time.
  void push(Range piece);
  void pull(Range piece);

  /// At the centre, after push(piece): its gradients there become the average over the ranks that
  /// pushed, and `with_own`, the centre's.
  Share average(Range piece, bool with_own) { return received_->average(piece, with_own); }

 private:
  StrategyContext context_;
  std::optional<ReceivedGradients> received_;  // at the centre
};

}  // namespace shakedown::training
