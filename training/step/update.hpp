// The arithmetic of one weight's update and of the step's scalars, shared by both backends'
// kernels.
#pragma once

#include <cmath>

#include "common/host_device.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::training {

/// The factor of this step's gradients.
SHAKEDOWN_HOST_DEVICE inline float gradient_factor(const StepScalars& scalars) {
  return scalars.clip / scalars.loss_scale;
}

SHAKEDOWN_HOST_DEVICE inline void sgd_update(float& w, float& momentum, float gradient,
                                             bool decayed, const SgdSettings& s,
                                             float learning_rate) {
  const float g = decayed ? gradient + s.weight_decay * w : gradient;
  momentum = s.momentum * momentum + g;
  w -= learning_rate * (s.nesterov ? g + s.momentum * momentum : momentum);
}

/// `learning_rate` is that of the weight's parameter, with its trust ratio.
SHAKEDOWN_HOST_DEVICE inline void lars_update(float& w, float& momentum, float gradient,
                                              bool decayed, const SgdSettings& s,
                                              float learning_rate) {
  const float step = learning_rate * (decayed ? gradient + s.weight_decay * w : gradient);
  momentum = s.momentum * momentum + step;
  w -= s.nesterov ? step + s.momentum * momentum : momentum;
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

/// Sets grad_norm and clip from the sum of squares of all gradients. A norm that is not a number
/// makes the gradients such, as in PyTorch.
SHAKEDOWN_HOST_DEVICE inline void take_norm(StepScalars& scalars, double squares, float clip) {
  scalars.grad_norm = static_cast<float>(sqrt(squares)) / scalars.loss_scale;
  if (clip == 0) return;
  const float factor = clip / (scalars.grad_norm + 1e-6F);
  scalars.clip = factor > 1 ? 1 : factor;
}

SHAKEDOWN_HOST_DEVICE inline float trust_ratio(const Squares& sums, float gradient_factor,
                                               const NormSettings& s) {
  const float w = sqrtf(sums.weight);
  const float g = sqrtf(sums.gradient) * gradient_factor;
  return w > 0 && g > 0 ? s.trust_coefficient * w / (g + s.weight_decay * w) : 1.0F;
}

/// The share of the new value in the average that this update takes; 0 where it takes none.
SHAKEDOWN_HOST_DEVICE inline float ema_share(const EmaSettings& s, const StepScalars& scalars) {
  const int update = scalars.updates + 1;
  if (!scalars.finite || update % s.every != 0) return 0;
  const auto t = static_cast<float>(update / s.every);
  const float warming = (1 + t) / (10 + t);
  return 1 - (warming < s.decay ? warming : s.decay);
}

/// Counts a step and adapts the loss scale; see UpdateKernels::finish_update.
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

}  // namespace shakedown::training
