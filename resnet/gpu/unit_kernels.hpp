// The kernels of the gpu units: plain functions over device pointers. Activations are NHWC with C
// a multiple of 8, in float32, float16 or bfloat16 (`type`); everything summed or normalised with
// is float32.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/host_device.hpp"
#include "common/types.hpp"
#include "resnet/architecture.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

/// What every launch of a kernel over activations is given. Unless a kernel says otherwise, they
/// are those it writes.
struct Launch {
  ActivationShape shape;
  DataType type;
  cudaStream_t stream;

  Launch over(const ActivationShape& other) const { return {other, type, stream}; }
};

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
  static std::size_t bytes(int channels) {
    return kCount * static_cast<std::size_t>(channels) * sizeof(float);
  }
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
void batch_statistics(const void* z, const NormParameters& norm, const NormVectors& vectors,
                      float* scratch, const Launch& on);
/// The same from each channel's sums of z, then of z squared, which were taken while z was
/// computed.
void statistics_of_sums(const float* sums, const NormParameters& norm, const NormVectors& vectors,
                        const Launch& on);
/// scale and shift from the running statistics.
void running_statistics(int channels, const NormParameters& norm, const NormVectors& vectors,
                        cudaStream_t stream);

/// y = relu(z * scale + shift).
void normalise_relu(const void* z, const NormVectors& norm, void* y, const Launch& on);
/// How a block ends: y = relu(z * scale + shift + s), where s is the shortcut, normalised if it has
/// a norm. `mask` gets one byte per 16-byte vector of y, one bit per element, set where it is
/// positive.
struct BlockEnd {
  NormVectors norm;
  const void* shortcut;
  std::optional<NormVectors> shortcut_norm;
  void* y;
  std::uint8_t* mask;
};
void normalise_add_relu(const void* z, const BlockEnd& end, const Launch& on);
std::size_t mask_bytes(const ActivationShape& shape, DataType type);

/// z of a 1x1 convolution of stride 1: x (pixels x depth) times w (channels of z x depth).
struct ForwardProduct {
  const void* x;
  const void* w;
  int depth;
};
/// normalise_add_relu where z is a product, which is not rounded. Tensor cores, 16-bit elements;
/// only if has_*() is true.
void conv_normalise_add_relu(const ForwardProduct& product, const BlockEnd& end, const Launch& on);
bool has_conv_normalise_add_relu(DataType type, int depth, int channels);

// Backward has three kernels: a reduction over the gradient, which leaves partial sums in
// `partials` and returns how many there are of each; one that finishes the sums; the gradient
// itself.

/// Backward of normalise_relu, reduction: sums over dy where y > 0.
int normalise_relu_backward(const void* dy, const void* z, const NormVectors& norm, float* partials,
                            const Launch& on);
/// A norm: its input and what belongs to it.
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

  static CentredTensors of(std::span<const AddedNorm> norms) {
    CentredTensors all;
    for (const AddedNorm& norm : norms) all.tensors[all.count++] = {norm.z, norm.vectors.mean};
    return all;
  }
};
/// Backward of normalise_add_relu, reduction: dsum = (dy_a + dy_b) where the mask is set, in the
/// place of dy_a; sums of it, and of it with each of the centred tensors.
int add_relu_backward(void* dy_a, const Addend& dy_b, const std::uint8_t* mask,
                      const CentredTensors& centred, float* partials, const Launch& on);

/// From `count` partial sums each: the gradients of the norms, two at most, and grad_a, b, c of
/// each. `sum` gets the sums of dsum, unless it is null; with it there is one norm at most.
void finish_norm_gradients(const float* partials, int count, std::span<const AddedNorm> norms,
                           float* sum, const Launch& on);
/// Last, for one norm: dz = grad_a * dy + grad_b * z + grad_c; with `relu` of dy where y > 0.
void normalise_apply(const void* dy, const void* z, const NormVectors& norm, bool relu, void* dz,
                     const Launch& on);

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
                           float* partials, const Launch& on);
bool has_conv_add_relu_backward(DataType type, int depth, int channels);

/// normalise_relu_backward where dy is a product; dy gets it where y > 0. dz is written.
int normalise_conv_relu_backward(const GradientProduct& product, const void* z,
                                 const NormVectors& norm, void* dy, float* partials,
                                 const Launch& on);
bool has_normalise_conv_relu_backward(DataType type, int depth, int channels);

// The stem's max-pooling, 3x3, stride 2, padding 1. `shape` is z's.

/// peak: of each window the z whose norm is largest, by the sign of gamma; argmax: its place in the
/// window (0..8). y = normalise_relu(peak).
void stem_pool(const void* z, const float* gamma, void* peak, std::uint8_t* argmax,
               const Launch& on);
/// Backward, first half: dsum = dy_a + dy_b (dy_b may be null) where y > 0, in the place of dy_a,
/// and from it the norm's gradients and grad_a, b, c.
void stem_pool_backward(void* dy_a, const void* dy_b, const void* peak,
                        const NormParameters& parameters, const NormVectors& norm, float* scratch,
                        const Launch& on);
/// Second half: dz.
void stem_pool_apply(const void* dsum, const std::uint8_t* argmax, const void* z,
                     const NormVectors& norm, void* dz, const Launch& on);

// The stem's convolution, 7x7 of stride 2 over an image of 4 channels, fused with its pooling:
// 16-bit elements, on tensor cores; only if has_conv_stem_pool() and
// has_conv_stem_weight_gradient() are true.

/// stem_pool of z = conv(x, w); z is stored unless it is null. Returns how many partial sums of z
/// it leaves in `partials`, which finish_conv_stem_pool makes statistics of.
int conv_stem_pool(const void* x, const void* w, const NormParameters& parameters, void* z,
                   void* peak, std::uint8_t* argmax, float* partials, const Launch& on);
void finish_conv_stem_pool(const float* partials, int count, const NormParameters& parameters,
                           const NormVectors& norm, const Launch& on);
/// The weights' gradient from the dz of stem_pool_apply, which is not stored.
void conv_stem_weight_gradient(const void* dsum, const std::uint8_t* argmax, const void* z,
                               const NormVectors& norm, const void* x, void* dw, float* partials,
                               const Launch& on);
bool has_conv_stem_pool(DataType type, const ConvShape& conv);
bool has_conv_stem_weight_gradient(DataType type, const ConvShape& conv);
// floats of `partials`
std::size_t conv_stem_pool_partials();
std::size_t conv_stem_weight_gradient_partials();

/// features[n][c] = mean of x over H and W, and its backward pass.
void average_pool(const void* x, void* features, const Launch& on);
void average_pool_backward(const void* dfeatures, void* dx, const Launch& on);

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

/// uint8 N H W 3 -> normalised N H W C of this shape, C kStemChannels, padded with zeros.
void normalise_images(const std::uint8_t* images, void* x, const Launch& on);

/// Fills memory with numbers of moderate size: algorithms are timed on it.
void randomise(void* to, std::size_t count, DataType type, cudaStream_t stream);
/// Keeps the stream busy, so that the host is ahead of what is timed after it.
void pause(double us, cudaStream_t stream);

// A norm over z = y w' (a 1x1 convolution of stride 1) that has neither z nor dz in memory. With g
// the gradient of the normalised z, dz = a g + b z + c by channel of z, and
//   D = g'y (filters x channels), G = y'y, s = sum of y, sum of g:
//   mean = w s / rows, variance = diagonal of w G w' / rows - mean^2: known before z is computed
//   dgamma = invstd (rows of w D - mean sum of g)
//   dy     = y H + g (a w) + w'c, H = w' (b w)
//   dw     = a D + b w G + c s'
// D and G are in float32, in a fixed number of partial sums: tensor cores truncate, so errors grow
// with the length of a sum.

/// Equal parts that a sum over `rows` rows is cut into: at least `wanted` where the rows allow it,
/// and none longer than `longest` rows (layer1 at batch 256 in 128 parts: measured). 0: no such
/// cut.
inline int gram_parts(std::size_t rows, std::size_t wanted, std::size_t longest = 6272) {
  constexpr std::size_t kShortest = 64;
  const std::size_t least = std::max(
      {std::min(wanted, rows / kShortest), (rows + longest - 1) / longest, std::size_t{1}});
  for (std::size_t parts = least; parts <= 4 * least; ++parts)
    if (rows % parts == 0) return static_cast<int>(parts);
  return 0;
}
/// Of D: enough for a GPU's multiprocessors, and few where they are large. They may be twice as
/// long as G's, whose terms are all positive.
inline int gram_parts_of_d(std::size_t rows, int channels) {
  return gram_parts(rows, channels > 128 ? 8 : 64 * 64 / static_cast<std::size_t>(channels), 12544);
}
/// Of G.
inline int gram_parts_of_g(std::size_t rows, int channels) {
  return gram_parts(rows, channels > 128 ? 32 : 128);
}

/// Whether g (a w) is a product of its own, a convolution's: the matrices for all of dy are too
/// large to stay in shared memory.
SHAKEDOWN_HOST_DEVICE constexpr bool gram_in_two(int channels) { return channels > 128; }

/// The convolution's matrices, in device memory. `placed`: channels (as placed_column has them) x
/// (channels + filters) of the activations' type, H times a power of two, then a w. In two products
/// it has H alone, and `scaled` a w as the convolution has w.
struct GramMatrices {
  int channels;    // of y: 64, 128 or 256
  int filters;     // channels of z: four times as many
  const void* w;   // filters x channels
  float* d;        // filters x channels
  float* largest;  // of |w|, by filter
  float* bias;     // w'c: channels
  float* unscale;  // one: what undoes H's power of two
  void* placed;
  void* scaled;  // filters x channels; null in one product
};

/// y = relu(z * scale + shift), and partial sums of y; returns their count.
int normalise_relu_sums(const void* z, const NormVectors& norm, void* y, float* partials,
                        const Launch& on);
/// to[i] = sum of partials[p][i], p < count, i < size (a multiple of 32), in a fixed order.
void sum_partials(const float* partials, int count, int size, float* to, cudaStream_t stream);

/// A norm over z goes through the Gram matrix where z is larger than this share of the L2 cache: it
/// does not stay there, and to read and write it is what takes time.
inline constexpr double kLeastShareOfL2 = 2.0 / 3;
bool gram_pays(std::size_t bytes_of_z);

/// batch_statistics of z = y w', of this shape, from G and s. w: filters x channels. On Hopper
/// alone.
void gram_statistics(const void* w, int channels, const float* gram, const float* sum_of_y,
                     const NormParameters& norm, const NormVectors& vectors, const Launch& on);

/// From D's parts and the sum of g by filter: D, the norm's gradients, grad_a, b, c, and what
/// gram_conv_relu_backward multiplies by. `share`: of one row, 1 / rows.
void gram_coefficients(const float* d_parts, int parts, const float* sum_of_g,
                       const NormParameters& parameters, const NormVectors& norm, float share,
                       const GramMatrices& matrices, DataType type, cudaStream_t stream);

/// dw, in `type`, from D, G (channels x channels) and s after gram_coefficients.
void gram_weight_gradient(const GramMatrices& matrices, const NormVectors& norm, const float* gram,
                          const float* sum_of_y, void* dw, DataType type, cudaStream_t stream);

/// normalise_relu_backward where dy = y H + g (a w) + w'c; dy gets it where relu passes. y and dy
/// are of `shape`, g has the matrices' filters; in two products dy has g (a w) before, and g is not
/// read. Returns the count of partial sums.
int gram_conv_relu_backward(const GramMatrices& matrices, const void* y, const void* g,
                            const void* z, const NormVectors& norm, void* dy, float* partials,
                            const Launch& on);
/// On Hopper alone.
bool has_gram_conv_relu_backward(DataType type, int channels, int filters);

// The ends of layer2's and layer3's blocks on wgmma: conv_normalise_add_relu, and
// conv_add_relu_backward without centred tensors. From depth 128 on mma.sync takes longer than the
// tensors take.

// On Hopper alone.
bool has_wide_conv_normalise_add_relu(DataType type, int depth, int channels);
bool has_wide_conv_add_relu_backward(DataType type, int depth, int channels);

void wide_conv_normalise_add_relu(const ForwardProduct& product, const BlockEnd& end,
                                  const Launch& on);

/// `dy` is as large as dsum. Returns the count of partial sums, of dsum alone.
int wide_conv_add_relu_backward(const GradientProduct& product, const void* dy,
                                const std::uint8_t* mask, void* dsum, float* partials,
                                const Launch& on);

// Which rows and columns of a product on wgmma a thread has.

/// Tensor cores compute 32 columns of a product in the order 8 g + 2 t + e for column 8 t + 2 g +
/// e: the eight columns of a thread are adjacent then (mma.cuh).
SHAKEDOWN_HOST_DEVICE constexpr unsigned placed_column(unsigned column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

/// In a tile of 64 rows, of a warpgroup's thread: the row of half 0 or 1.
SHAKEDOWN_HOST_DEVICE constexpr unsigned fragment_row(unsigned thread, unsigned half) {
  return thread / 32 % 4 * 16 + thread % 32 / 4 + half * 8;
}
/// The first of its eight adjacent columns in each 32.
SHAKEDOWN_HOST_DEVICE constexpr unsigned fragment_column(unsigned thread) { return thread % 4 * 8; }
/// Which of its accumulators has half `half` and column v of the eight in group q of 32.
SHAKEDOWN_HOST_DEVICE constexpr unsigned accumulator_of(unsigned q, unsigned half, unsigned v) {
  return (q * 4 + v / 2) * 4 + half * 2 + v % 2;
}

}  // namespace shakedown::gpu
