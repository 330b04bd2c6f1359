// Gradients sent to rank 0 and weights sent back, rank by rank: what a parameter server's network
// sees.
#pragma once

#include "resnet/flat_buffer.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

class Star {
 public:
  /// Of the ranks `first_worker`.. with rank 0, pieces of at most `largest` elements at a time.
  Star(const StrategyContext& context, int first_worker, std::size_t largest);

  bool at_centre() const { return context_.world.rank() == 0; }

  /// Enqueues. To be grouped with what is to go on at the same time.
  void push(Range piece);
  void pull(Range piece);

  /// At the centre, after push(piece): its gradients there become the average over the ranks that
  /// pushed, and `with_own`, the centre's.
  Share average(Range piece, bool with_own);

 private:
  std::size_t workers() const {
    return static_cast<std::size_t>(context_.world.size() - first_worker_);
  }
  View received(std::size_t worker, Range piece) const;

  StrategyContext context_;
  int first_worker_;
  std::size_t largest_;
  Buffer received_;  // at the centre: a piece of each worker's gradients
  Buffer sum_;       // float32, where gradients are not
};

}  // namespace shakedown::training
