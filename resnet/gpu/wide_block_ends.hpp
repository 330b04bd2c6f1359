// The ends of layer2's and layer3's blocks on wgmma: conv_normalise_add_relu, and
// conv_add_relu_backward without centred tensors. From depth 128 on mma.sync takes longer than the
// tensors take.
#pragma once

#include "resnet/gpu/unit_kernels.hpp"

namespace shakedown::gpu {

// On Hopper alone.
bool has_wide_conv_normalise_add_relu(DataType type, int depth, int channels);
bool has_wide_conv_add_relu_backward(DataType type, int depth, int channels);

void wide_conv_normalise_add_relu(const ForwardProduct& product, const NormVectors& norm,
                                  const void* shortcut, const NormVectors* shortcut_norm, void* y,
                                  std::uint8_t* mask, const ActivationShape& shape, DataType type,
                                  cudaStream_t stream);

/// `dy` is as large as dsum. Returns the count of partial sums, of dsum alone.
int wide_conv_add_relu_backward(const GradientProduct& product, const void* dy,
                                const std::uint8_t* mask, void* dsum, const ActivationShape& shape,
                                DataType type, float* partials, cudaStream_t stream);

}  // namespace shakedown::gpu
