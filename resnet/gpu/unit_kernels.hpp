// The kernels of the gpu units: plain functions over device pointers. Activations are NHWC with C
// a multiple of 8, in float32, float16 or bfloat16 (`type`); everything summed or normalised with
// is float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/types.hpp"
#include "resnet/shapes.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

/// The per-channel vectors of one batch normalisation, C floats each.
struct NormVectors {
  float* mean;
  float* invstd;
  float* scale;  // y = x * scale + shift
  float* shift;
  float* grad_a;  // dx = grad_a * dy + grad_b * x + grad_c
  float* grad_b;
  float* grad_c;

  static constexpr std::size_t kCount = 7;
  static NormVectors in(float* memory, int channels) {
    const auto c = static_cast<std::size_t>(channels);
    return {memory,         memory + c,     memory + 2 * c, memory + 3 * c,
            memory + 4 * c, memory + 5 * c, memory + 6 * c};
  }
};

/// A batch normalisation's parameters and running statistics.
struct NormParameters {
  const float* gamma;
  const float* beta;
  float* running_mean;
  float* running_variance;
  void* dgamma;  // in the gradient's type
  void* dbeta;
};

/// Floats of scratch that a reduction over `shape` needs, for `sums` sums per channel.
std::size_t reduction_scratch(const ActivationShape& shape, DataType type, int sums);

// Two-phase reductions: partial sums by blocks, finished in a fixed order, so results repeat
// bitwise.

/// Batch statistics of z: fills mean, invstd, scale, shift, and updates the running statistics.
void batch_statistics(const void* z, const ActivationShape& shape, DataType type,
                      const NormParameters& norm, const NormVectors& vectors, float* scratch,
                      cudaStream_t stream);
/// The same from each channel's sums of z, then of z squared, which were taken while z was
/// computed.
void statistics_of_sums(const float* sums, const ActivationShape& shape, const NormParameters& norm,
                        const NormVectors& vectors, cudaStream_t stream);
/// scale and shift from the running statistics.
void running_statistics(int channels, const NormParameters& norm, const NormVectors& vectors,
                        cudaStream_t stream);

/// y = relu(z * scale + shift).
void normalise_relu(const void* z, const NormVectors& norm, void* y, const ActivationShape& shape,
                    DataType type, cudaStream_t stream);
/// y = relu(z * scale + shift + s), where s is `shortcut`, normalised by `shortcut_norm` unless
/// that is null. `mask` gets one byte per 16-byte vector of y, one bit per element, set where it is
/// positive.
void normalise_add_relu(const void* z, const NormVectors& norm, const void* shortcut,
                        const NormVectors* shortcut_norm, void* y, std::uint8_t* mask,
                        const ActivationShape& shape, DataType type, cudaStream_t stream);
std::size_t mask_bytes(const ActivationShape& shape, DataType type);

/// z of a 1x1 convolution of stride 1: x (pixels x depth) times w (channels of z x depth).
struct ForwardProduct {
  const void* x;
  const void* w;
  int depth;
};
/// normalise_add_relu where z is a product, which is not rounded. Tensor cores, 16-bit elements;
/// only if has_*() is true.
void conv_normalise_add_relu(const ForwardProduct& product, const NormVectors& norm,
                             const void* shortcut, const NormVectors* shortcut_norm, void* y,
                             std::uint8_t* mask, const ActivationShape& shape, DataType type,
                             cudaStream_t stream);
bool has_conv_normalise_add_relu(DataType type, int depth, int channels);

// Backward has three kernels: a reduction over the gradient, which leaves partial sums in
// `partials` and returns how many there are of each; one that finishes the sums; the gradient
// itself.

/// Backward of normalise_relu, reduction: sums over dy where y > 0.
int normalise_relu_backward(const void* dy, const void* z, const NormVectors& norm,
                            const ActivationShape& shape, DataType type, float* partials,
                            cudaStream_t stream);
/// From `count` partial sums each: the norm's gradients, and grad_a, b, c.
void finish_normalise_relu_backward(const float* partials, int count,
                                    const NormParameters& parameters, const NormVectors& norm,
                                    const ActivationShape& shape, DataType type,
                                    cudaStream_t stream);
/// Last: dz = grad_a * (dy where y > 0) + grad_b * z + grad_c.
void normalise_relu_apply(const void* dy, const void* z, const NormVectors& norm, void* dz,
                          const ActivationShape& shape, DataType type, cudaStream_t stream);

/// A norm that ends a block: its input and what belongs to it.
struct AddedNorm {
  const void* z;
  NormVectors vectors;
  NormParameters parameters;
};
/// A gradient's second addend, or null: every stride-th row and column (1 or 2), zero between.
struct Addend {
  const void* data;
  int stride;
};
/// The tensors z that the sums of dsum * (z - mean) are taken with: what a block's norms normalise.
struct CentredTensors {
  struct Tensor {
    const void* z;
    const float* mean;
  };
  int count = 0;
  Tensor tensors[2] = {};

  /// Of the norms that are not null.
  static CentredTensors of(const AddedNorm* main, const AddedNorm* shortcut) {
    CentredTensors all;
    for (const AddedNorm* norm : {main, shortcut})
      if (norm != nullptr) all.tensors[all.count++] = {norm->z, norm->vectors.mean};
    return all;
  }
};
/// Backward of normalise_add_relu, reduction: dsum = (dy_a + dy_b) where the mask is set, in the
/// place of dy_a; sums of it, and of it with each of the centred tensors.
int add_relu_backward(void* dy_a, const Addend& dy_b, const std::uint8_t* mask,
                      const CentredTensors& centred, const ActivationShape& shape, DataType type,
                      float* partials, cudaStream_t stream);

/// From `count` partial sums each: the gradients of `main`'s norm and, unless null, of
/// `shortcut`'s; and grad_a, b, c of each.
void finish_add_relu_backward(const float* partials, int count, const AddedNorm& main,
                              const AddedNorm* shortcut, const ActivationShape& shape,
                              DataType type, cudaStream_t stream);
/// Last, for one norm: dz = grad_a * dsum + grad_b * z + grad_c.
void normalise_apply(const void* dsum, const void* z, const NormVectors& norm, void* dz,
                     const ActivationShape& shape, DataType type, cudaStream_t stream);

// These reductions fused with the data gradient of a 1x1 convolution of stride 1, which computes
// their input: dz (pixels x depth, its filters) times w (depth x channels of x). Tensor cores,
// 16-bit elements; only if has_*() is true.

/// dz = grad_a * dnormed + grad_b * z + grad_c, as normalise_apply.
struct NormGradient {
  const void* dnormed;
  const void* z;
  NormVectors norm;
};
struct GradientProduct {
  void* dz;
  const void* w;
  int depth;
  const NormGradient* from = nullptr;  // what dz is computed from first; null: dz is given
};

/// add_relu_backward where dy_a is a product: dsum = (product + dy) where the mask is set. dz is
/// given.
int conv_add_relu_backward(const GradientProduct& product, const Addend& dy,
                           const std::uint8_t* mask, void* dsum, const CentredTensors& centred,
                           const ActivationShape& shape, DataType type, float* partials,
                           cudaStream_t stream);
bool has_conv_add_relu_backward(DataType type, int depth, int channels);

/// normalise_relu_backward where dy is a product; dy gets it where y > 0. dz is written.
int normalise_conv_relu_backward(const GradientProduct& product, const void* z,
                                 const NormVectors& norm, void* dy, const ActivationShape& shape,
                                 DataType type, float* partials, cudaStream_t stream);
bool has_normalise_conv_relu_backward(DataType type, int depth, int channels);

// The stem's max-pooling, 3x3, stride 2, padding 1. `shape` is z's.

/// peak: of each window the z whose norm is largest, by the sign of gamma; argmax: its place in the
/// window (0..8). y = normalise_relu(peak).
void stem_pool(const void* z, const float* gamma, void* peak, std::uint8_t* argmax,
               const ActivationShape& shape, DataType type, cudaStream_t stream);
/// Backward, first half: dsum = dy_a + dy_b (dy_b may be null) where y > 0, in the place of dy_a,
/// and from it the norm's gradients and grad_a, b, c.
void stem_pool_backward(void* dy_a, const void* dy_b, const void* peak,
                        const ActivationShape& shape, DataType type,
                        const NormParameters& parameters, const NormVectors& norm, float* scratch,
                        cudaStream_t stream);
/// Second half: dz.
void stem_pool_apply(const void* dsum, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const ActivationShape& shape, DataType type,
                     cudaStream_t stream);

// The stem's convolution, 7x7 of stride 2 over an image of 4 channels, fused with its pooling:
// 16-bit elements, on tensor cores; only if has_conv_stem_pool() and
// has_conv_stem_weight_gradient() are true.

/// stem_pool of z = conv(x, w); z is stored unless it is null. Returns how many partial sums of z
/// it leaves in `partials`, which finish_conv_stem_pool makes statistics of.
int conv_stem_pool(const void* x, const void* w, const NormParameters& parameters, void* z,
                   void* peak, std::uint8_t* argmax, const ActivationShape& shape, DataType type,
                   float* partials, cudaStream_t stream);
void finish_conv_stem_pool(const float* partials, int count, const NormParameters& parameters,
                           const NormVectors& norm, const ActivationShape& shape,
                           cudaStream_t stream);
/// The weights' gradient from the dz of stem_pool_apply, which is not stored.
void conv_stem_weight_gradient(const void* dsum, const std::uint8_t* argmax, const void* z,
                               const NormVectors& norm, const void* x, void* dw,
                               const ActivationShape& shape, DataType type, float* partials,
                               cudaStream_t stream);
bool has_conv_stem_pool(DataType type, const ConvShape& conv);
bool has_conv_stem_weight_gradient(DataType type, const ConvShape& conv);
// floats of `partials`
std::size_t conv_stem_pool_partials();
std::size_t conv_stem_weight_gradient_partials();

/// features[n][c] = mean of x over H and W, and its backward pass.
void average_pool(const void* x, void* features, const ActivationShape& shape, DataType type,
                  cudaStream_t stream);
void average_pool_backward(const void* dfeatures, void* dx, const ActivationShape& shape,
                           DataType type, cudaStream_t stream);

/// Adds the bias to the logits, and from them: loss and hits of each sample, dlogits (in `type`,
/// times loss_scale / n), metrics. `samples` is scratch of n SampleResults.
struct SampleResult {
  float loss;
  std::int32_t better;  // logits ahead of the label's; -1: no label
};
void softmax_cross_entropy(float* logits, const float* bias, const std::int32_t* labels, int n,
                           int classes, float smoothing, const float* loss_scale, void* dlogits,
                           DataType type, SampleResult* samples, HeadMetrics* metrics,
                           cudaStream_t stream);
/// dbias[k] = sum over n of dlogits[n][k].
void bias_gradient(const void* dlogits, int n, int classes, void* dbias, DataType type,
                   cudaStream_t stream);

/// uint8 N H W 3 -> normalised N H W C of this shape, C 4 or 8, padded with zero channels.
void normalise_images(const std::uint8_t* images, void* x, const ActivationShape& shape,
                      DataType type, cudaStream_t stream);

/// Fills memory with numbers of moderate size: algorithms are timed on it.
void randomise(void* to, std::size_t count, DataType type, cudaStream_t stream);
/// Keeps the stream busy, so that the host is ahead of what is timed after it.
void pause(double us, cudaStream_t stream);

}  // namespace shakedown::gpu
