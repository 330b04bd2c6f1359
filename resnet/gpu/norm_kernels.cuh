// What a norm's statistics make: its vectors and the running statistics, channel by channel.
#pragma once

#include "resnet/gpu/passes.cuh"

namespace shakedown::gpu {

/// In float32: a chain of double's divisions would take longer than all else that a kernel of a few
/// channels does.
__device__ inline void set_scale_shift(int c, float mean, float variance, const NormParameters& p,
                                       const NormVectors& n) {
  // All is loaded before the first store: the compiler cannot know that stores change none of it,
  // and would load one after the other.
  const float gamma = p.gamma[c];
  const float beta = p.beta[c];
  const float invstd = rsqrtf(variance + kNormEpsilon);
  const float scale = gamma * invstd;
  n.mean[c] = mean;
  n.invstd[c] = invstd;
  n.scale[c] = scale;
  n.shift[c] = beta - mean * scale;
}

/// The number of elements in a channel's sums.
struct Count {
  double share;    // of one element
  float unbiased;  // variance over the one that divides by the count

  static Count of(const ActivationShape& shape) {
    const double count = count_of(shape);
    return {1 / count, static_cast<float>(count / (count - 1))};
  }
};

/// From the sums of z - origin and of its square.
__device__ inline void set_statistics(int c, float origin, double sum, double square_sum,
                                      const Count& count, const NormParameters& p,
                                      const NormVectors& n) {
  const float running_mean = p.running_mean[c];
  const float running_variance = p.running_variance[c];
  const double offset = sum * count.share;
  const auto mean = static_cast<float>(origin + offset);
  const double difference = square_sum * count.share - offset * offset;
  const auto variance = static_cast<float>(difference < 0 ? 0.0 : difference);  // a NaN stays
  set_scale_shift(c, mean, variance, p, n);
  p.running_mean[c] = running_mean + kNormMomentum * (mean - running_mean);
  p.running_variance[c] =
      running_variance + kNormMomentum * (variance * count.unbiased - running_variance);
}

}  // namespace shakedown::gpu
