// Elementwise kernels over flat buffers in device memory: what strategies, the optimiser and the
// loss scale need; and time as the stream has it, for what is slowed down. Every call is enqueued
// on the stream; pointers are device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/types.hpp"

namespace shakedown {

class Stream;

/// The scalars of a training step that live on the device, so that a step needs no host.
struct StepScalars {
  float learning_rate = 0;
  float loss_scale = 1;
  std::int32_t finite = 1;         // 0 once a non-finite gradient was seen in this step
  std::int32_t updates = 0;        // steps applied
  std::int32_t skipped = 0;        // steps skipped for non-finite gradients
  std::int32_t since_rescale = 0;  // steps applied since the loss scale last changed
};

/// Elements of a flat buffer to whose multiples parameters, shards and pieces are aligned.
/// Optimisers have a byte for each such chunk: whether its weights decay.
inline constexpr std::size_t kFlatAlignment = 64;

/// One range of the flat buffers. `state` are the optimiser's own buffers.
struct UpdateRange {
  float* master = nullptr;
  void* compute = nullptr;  // rounded copy, or null where there is none
  DataType compute_type = DataType::float32;
  const void* gradient = nullptr;
  DataType gradient_type = DataType::float32;  // where it was exchanged in another, not compute's
  float* state_a = nullptr;                    // sgd: momentum; adam: first moment
  float* state_b = nullptr;                    // adam: second moment
  const std::uint8_t* decayed = nullptr;       // chunk flags of this range, or null: all decayed
  std::size_t count = 0;                       // elements; ranges start at a chunk
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

/// Nanoseconds of each way of a full-duplex link.
struct DuplexTime {
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  /// x[i] = value.
  virtual void fill(View x, double value, Stream& stream) const = 0;
  /// to[i] = from[i], rounded to nearest even. Types are float32, float16 or bfloat16.
  virtual void convert(ConstView from, View to, Stream& stream) const = 0;
  /// sum[i] = (first ? 0 : sum[i]) + x[i]; `sum` is float32.
  virtual void accumulate(View sum, ConstView x, bool first, Stream& stream) const = 0;
  /// to[i] = from[i] * factor; `from` is float32.
  virtual void scale(ConstView from, View to, float factor, Stream& stream) const = 0;
  /// Chunks of kFlatAlignment float32 elements: to's chunk c is from's chunk sources[c], or zeros
  /// where sources[c] is -1. `sources` is device memory.
  virtual void gather_chunks(View to, ConstView from, const std::int64_t* sources,
                             Stream& stream) const = 0;
  /// scalars->finite = 0 if an element of x is infinite or not a number.
  virtual void check_finite(ConstView x, StepScalars* scalars, Stream& stream) const = 0;

  /// PyTorch's SGD: g = gradient / loss_scale + weight_decay * w; m = momentum * m + g;
  /// w -= learning_rate * (nesterov ? g + momentum * m : m). Skipped when !scalars->finite.
  virtual void sgd(const UpdateRange& range, const SgdSettings& settings,
                   const StepScalars* scalars, Stream& stream) const = 0;
  /// Adam (Kingma & Ba 2015), or AdamW (Loshchilov & Hutter 2019), as PyTorch computes them; the
  /// step number is scalars->updates + 1.
  virtual void adam(const UpdateRange& range, const AdamSettings& settings,
                    const StepScalars* scalars, Stream& stream) const = 0;
  /// Counts the step as applied or skipped. With `dynamic_scale`, the loss scale is halved on a
  /// skip and doubled after 2000 applied steps (PyTorch's GradScaler). Sets finite to 1 again.
  virtual void finish_update(StepScalars* scalars, bool dynamic_scale, Stream& stream) const = 0;
  virtual void set_learning_rate(StepScalars* scalars, float value, Stream& stream) const = 0;

  /// A link is busy each way for `needed` from now on, or from `free_at` on (its next free time on
  /// the device's clock, moved on by this) where that is later. What follows on the stream waits
  /// until then; other streams continue.
  virtual void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const = 0;
};

}  // namespace shakedown
