// The arithmetic of one weight's update, shared by both backends' kernels.
#pragma once

#include <cmath>

#include "common/host_device.hpp"
#include "common/kernels.hpp"

namespace shakedown {

SHAKEDOWN_HOST_DEVICE inline void sgd_update(float& w, float& momentum, float gradient,
                                             bool decayed, const SgdSettings& s,
                                             float learning_rate) {
  const float g = decayed ? gradient + s.weight_decay * w : gradient;
  momentum = s.momentum * momentum + g;
  w -= learning_rate * (s.nesterov ? g + s.momentum * momentum : momentum);
}

/// The factors of one Adam step that do not depend on the weight.
struct AdamStep {
  float learning_rate;
  float correction1;  // 1 - beta1^t
  float correction2;  // sqrt(1 - beta2^t)
};

SHAKEDOWN_HOST_DEVICE inline AdamStep adam_step(const AdamSettings& s, const StepScalars& scalars) {
  const double t = scalars.updates + 1;
  return {scalars.learning_rate, static_cast<float>(1.0 - pow(s.beta1, t)),
          static_cast<float>(sqrt(1.0 - pow(s.beta2, t)))};
}

SHAKEDOWN_HOST_DEVICE inline void adam_update(float& w, float& m, float& v, float gradient,
                                              bool decayed, const AdamSettings& s,
                                              const AdamStep& step) {
  const float decay = decayed ? s.weight_decay : 0.0F;
  float g = gradient;
  if (s.decoupled)
    w -= step.learning_rate * decay * w;
  else
    g += decay * w;
  m = static_cast<float>(s.beta1) * m + static_cast<float>(1.0 - s.beta1) * g;
  v = static_cast<float>(s.beta2) * v + static_cast<float>(1.0 - s.beta2) * g * g;
  w -= step.learning_rate / step.correction1 * m / (sqrtf(v) / step.correction2 + s.epsilon);
}

/// Counts a step and adapts the loss scale; see Kernels::finish_update.
SHAKEDOWN_HOST_DEVICE inline void finish_step(StepScalars& s, bool dynamic_scale) {
  constexpr int kGrowthInterval = 2000;
  if (s.finite) {
    ++s.updates;
    ++s.since_rescale;
    if (dynamic_scale && s.since_rescale >= kGrowthInterval) {
      const float grown = s.loss_scale * 2.0F;
      if (grown < INFINITY) s.loss_scale = grown;  // as PyTorch's GradScaler
      s.since_rescale = 0;
    }
  } else {
    ++s.skipped;
    if (dynamic_scale) s.loss_scale *= 0.5F;
    s.since_rescale = 0;
  }
  s.finite = 1;
}

}  // namespace shakedown
