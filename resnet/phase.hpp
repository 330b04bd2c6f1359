// The phases of a training step, for timelines and logs.
#pragma once

namespace shakedown {

/// `exchange`: gradients or weights move between ranks, or the compute stream waits for them.
enum class Phase { input, forward, backward, exchange, update };

constexpr const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::input: return "input";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::exchange: return "exchange";
    case Phase::update: return "update";
  }
  return "";
}

}  // namespace shakedown
