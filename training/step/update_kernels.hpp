// The kernels of an update: optimisers, gradient norms, the average of the weights and the step's
// scalars. Each backend has its own (training/step/cpu, training/step/gpu). Every call is enqueued
// on the stream; pointers are device memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/communicator.hpp"
#include "common/host_device.hpp"
#include "common/types.hpp"
#include "training/exchange/strategy.hpp"

namespace shakedown::training {

/// One range of the flat buffers. `state` are the optimiser's own buffers; there is one flag or
/// number for each chunk of kFlatAlignment elements of the range, which starts at a chunk.
struct LocalRange {
  float* master = nullptr;
  void* compute = nullptr;  // rounded copy, or null where there is none
  DataType compute_type = DataType::float32;
  const void* gradient = nullptr;
  DataType gradient_type = DataType::float32;  // where it was exchanged in another, not compute's
  float* state_a = nullptr;                    // sgd, lars: momentum; adam: first moment
  float* state_b = nullptr;                    // adam: second moment
  const std::uint8_t* decayed = nullptr;       // by chunk, or null: all decayed
  const std::uint16_t* tensors = nullptr;      // lars: by chunk, which parameter it is of
  const float* trust = nullptr;                // lars: ratio by parameter
  std::size_t count = 0;                       // elements
};
/// The same, and where other ranks have the rounded copy: of compute_type, the gradients' own.
struct UpdateRange : LocalRange {
  void* copies[kMostPeers] = {};
  int copy_count = 0;
};

struct SgdSettings {
  float momentum = 0.9F;
  float weight_decay = 0;
  bool nesterov = false;
};
struct AdamSettings {
  double beta1 = 0.9;
  double beta2 = 0.999;
  float epsilon = 1e-8F;
  float weight_decay = 0;
  bool decoupled = false;  // AdamW
};
/// How weights are updated from their gradients g.
struct UpdateRule {
  enum Kind {
    /// PyTorch's SGD: g += weight_decay * w; m = momentum * m + g;
    /// w -= learning_rate * (nesterov ? g + momentum * m : m).
    sgd,
    /// LARS (You et al. 2017) as MLPerf's reference has it (mlcommons/training,
    /// image_classification/tensorflow2/lars_optimizer.py), with the learning rate in the momentum:
    /// s = learning_rate * trust ratio * (g + weight_decay * w); m = momentum * m + s;
    /// w -= nesterov ? s + momentum * m : m.
    lars,
    /// Adam (Kingma & Ba 2015), or AdamW (Loshchilov & Hutter 2019), as PyTorch computes them; the
    /// step number is StepScalars::updates + 1.
    adam,
  } kind = sgd;
  SgdSettings of_sgd = {};  // and of lars
  AdamSettings of_adam = {};
};

/// A part of one parameter in a range.
struct NormPiece {
  std::size_t begin = 0;  // from the range's first element
  std::size_t count = 0;
  std::size_t slot = 0;  // of its partial sums
};
/// Sums of squares.
struct Squares {
  float gradient = 0;  // as computed: of the scaled loss
  float weight = 0;
};
/// The use of the parameters' norms.
struct NormSettings {
  float clip = 0;                    // largest norm of all gradients; 0: any
  float trust_coefficient = 0.001F;  // of lars: "eeta" in MLPerf's reference
  float weight_decay = 0;
};

/// Average of the weights over the updates.
struct EmaSettings {
  float decay = 0;
  int every = 1;  // updates from one average to the next
};

class UpdateKernels {
 public:
  virtual ~UpdateKernels() = default;

  /// Skipped when !scalars->finite. The gradient g is gradient * clip / loss_scale.
  virtual void update(const UpdateRange& range, const UpdateRule& rule, const StepScalars* scalars,
                      Stream& stream) const = 0;

  // Norms, summed in a fixed order: pieces, then parameters (then ranks), then all.

  /// partials[piece.slot] = the piece's sums; `weights` may be null, for zeros.
  virtual void sum_pieces(ConstView gradient, const float* weights,
                          std::span<const NormPiece> pieces, Squares* partials,
                          Stream& stream) const = 0;
  /// sums[p] = the sum of partials first[p] to first[p + 1]; `first` has one element more.
  virtual void sum_parameters(const Squares* partials, std::span<const std::uint32_t> first,
                              Squares* sums, Stream& stream) const = 0;
  /// Sets grad_norm; clip, as torch.nn.utils.clip_grad_norm_ does: clip / (norm + 1e-6), at most 1;
  /// and where adapted[p], trust[p] = trust_coefficient |w| / (|g| + weight_decay |w|), else 1.
  virtual void apply_norms(std::span<const Squares> sums, const NormSettings& settings,
                           const std::uint8_t* adapted, float* trust, StepScalars* scalars,
                           Stream& stream) const = 0;

  /// Before finish_update(): on every `every`-th update that is applied, average = d * average +
  /// (1 - d) * x with d = min(decay, (1 + t) / (10 + t)), t the number of averages taken, this one
  /// included: the warm-up of TensorFlow's tf.train.ExponentialMovingAverage(num_updates).
  virtual void average(View average, ConstView x, const EmaSettings& settings,
                       const StepScalars* scalars, Stream& stream) const = 0;

  /// Counts the step as applied or skipped. With `dynamic_scale`, the loss scale is halved on a
  /// skip and doubled after 2000 applied steps (PyTorch's GradScaler). Sets finite to 1 again.
  virtual void finish_update(StepScalars* scalars, bool dynamic_scale, Stream& stream) const = 0;
  virtual void set_learning_rate(StepScalars* scalars, float value, Stream& stream) const = 0;
};

/// The kernels of the device's backend.
std::unique_ptr<UpdateKernels> make_update_kernels(const Device& device);

}  // namespace shakedown::training

namespace shakedown::cpu {

std::unique_ptr<training::UpdateKernels> make_update_kernels();

}  // namespace shakedown::cpu

namespace shakedown::gpu {

std::unique_ptr<training::UpdateKernels> make_update_kernels();

}  // namespace shakedown::gpu

namespace shakedown::training {

// The arithmetic of one weight's update and of the step's scalars, shared by both backends'
// kernels.

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
