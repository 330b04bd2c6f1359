// A convolution with its batch norm.
#pragma once

#include <optional>

#include "resnet/gpu/convolution.hpp"

namespace shakedown::gpu {

/// z = conv(x) and the vectors that normalise z; backward from dz, or from the gradient of the
/// normalised z. What is done with z in between is the unit's. It also runs the reduction over dx
/// of the unit before it, where that can be fused with the data gradient.
class NormedConvolution {
 public:
  struct Tensors {
    const Slot* x;
    const Slot* x_in_backward;  // x again, where backward reads it
    const Slot* dnormed;  // gradient of the normalised z, from which dz is made; null: dz is given
    const Slot* dz;
    const Slot* dx;           // null: not needed
    bool compact_dx = false;  // of a strided 1x1: only the pixels that it reads
  };
  NormedConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                    const Tensors& tensors);

  void bind();
  void forward(Pass pass);
  void backward();

  const void* z() const { return z_->data(); }
  NormVectors vectors() const { return NormVectors::in(vectors_->as<float>(), layer_.conv.k); }
  NormParameters parameters() const { return context_.parameters_of(layer_); }
  ActivationShape shape() const { return layer_.conv.y(); }
  double bytes() const { return context_.bytes_of(shape()); }
  int weight() const { return layer_.weight; }
  /// Enqueues: random data for z and its vectors, to be timed on.
  void randomise_z() const;

 private:
  void bind_sums(const ConvBuffers& buffers);
  void bind_reduction();
  void backward_fused() const;
  void backward_unfused() const;
  void forward_normed(bool fuses_sums, const NormParameters& norm) const;

  GpuContext& context_;
  NormedConv layer_;
  Tensors tensors_;
  const Slot* z_;
  const Slot* vectors_;
  const Slot* sums_;
  const Slot* workspace_;
  const Slot* backward_workspace_;
  Convolution forward_;
  std::optional<Convolution> forward_with_sums_;  // where it may replace forward_
  std::optional<Convolution> backward_data_;
  Convolution backward_weights_;
  FusableReduction* reduction_ = nullptr;  // that this convolution enqueues, as it may be fused
  bool fuses_sums_ = false;
  bool fuses_reduction_ = false;
};

}  // namespace shakedown::gpu
