// Gradients on their way to the rank that updates them, and weights on their way back, timed apart.
#pragma once

#include "training/phase_timer.hpp"
#include "training/strategy.hpp"

namespace shakedown {

struct PushPull {
  explicit PushPull(Device& device) : push(device), pull(device) {}
  std::vector<Strategy::Phase> phases() const {
    return {{"push_ms", push.median_ms()}, {"pull_ms", pull.median_ms()}};
  }

  PhaseTimer push;
  PhaseTimer pull;
};

}  // namespace shakedown
