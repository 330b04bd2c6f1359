// A norm over z = y w' (a 1x1 convolution of stride 1) that has neither z nor dz in memory. With g
// the gradient of the normalised z, dz = a g + b z + c by channel of z, and
//   D = g'y (filters x channels), G = y'y, s = sum of y, sum of g:
//   mean = w s / rows, variance = diagonal of w G w' / rows - mean^2: known before z is computed
//   dgamma = invstd (rows of w D - mean sum of g)
//   dy     = y H + g (a w) + w'c, H = w' (b w)
//   dw     = a D + b w G + c s'
// D and G are in float32, in a fixed number of partial sums: tensor cores truncate, so errors grow
// with the length of a sum.
#pragma once

#include <algorithm>

#include "common/host_device.hpp"
#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {

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
int normalise_relu_sums(const void* z, const NormVectors& norm, void* y,
                        const ActivationShape& shape, DataType type, float* partials,
                        cudaStream_t stream);
/// to[i] = sum of partials[p][i], p < count, i < size (a multiple of 32), in a fixed order.
void sum_partials(const float* partials, int count, int size, float* to, cudaStream_t stream);

/// A norm over z goes through the Gram matrix where z is larger than this share of the L2 cache: it
/// does not stay there, and to read and write it is what takes time.
inline constexpr double kLeastShareOfL2 = 2.0 / 3;
bool gram_pays(std::size_t bytes_of_z);

/// batch_statistics of z = y w', of this shape, from G and s. w: filters x channels. On Hopper
/// alone.
void gram_statistics(const void* w, int channels, const float* gram, const float* sum_of_y,
                     const ActivationShape& z, const NormParameters& norm,
                     const NormVectors& vectors, DataType type, cudaStream_t stream);

/// In finish_add_relu_backward's place, after sums without the main norm's z: the sum of dsum, and
/// the gradients of `shortcut`'s norm unless that is null.
void finish_add_relu_backward_sum(const float* partials, int count, float* sum,
                                  const AddedNorm* shortcut, const ActivationShape& shape,
                                  DataType type, cudaStream_t stream);

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
                            const void* z, const NormVectors& norm, void* dy,
                            const ActivationShape& shape, DataType type, float* partials,
                            cudaStream_t stream);
/// On Hopper alone.
bool has_gram_conv_relu_backward(DataType type, int channels, int filters);

}  // namespace shakedown::gpu
