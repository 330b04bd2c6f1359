// A convolution with its batch norm.
#pragma once

#include <string>

#include "resnet/cpu/onednn.hpp"

namespace shakedown::cpu {

/// out = norm(conv(x)) and its backward pass.
class NormedConvolution {
 public:
  /// `x_desc` is x's layout; `dx` may be null: the gradient of x is not needed.
  NormedConvolution(CpuContext& context, const NormedConv& layer, Moments when, const Desc& x_desc,
                    const Slot* x, const Slot* out, const Slot* dx);

  void bind();
  void forward(Pass pass);
  /// `dout` is the whole gradient of out.
  void backward(const Slot* dout);

  int weight() const { return layer_.weight; }

 private:
  void bind_forward();
  void bind_backward();
  void update_running_statistics() const;
  void convolve(const char* kernel, const Operation& operation) const;
  /// Where a primitive needs the weights in another layout.
  void reorder_weights(const Operation& operation) const;

  CpuContext& context_;
  NormedConv layer_;
  std::string name_;
  Desc x_desc_;
  Desc y_desc_;
  Desc stored_;  // the weights' layout in the flat buffers
  const Slot* x_;
  const Slot* out_;
  const Slot* dx_;

  ConvForward conv_forward_;
  ConvBackwardData conv_backward_data_;
  ConvBackwardWeights conv_backward_weights_;
  NormForward norm_training_;
  NormForward norm_evaluation_;
  NormBackward norm_backward_;

  const Slot* z_;  // the convolution's output
  const Slot* mean_;
  const Slot* variance_;
  const Slot* dz_;               // gradient of z
  const Slot* weights_scratch_;  // weights in another layout, forward and backward
  const Slot* gradient_scratch_;
  const Slot* forward_scratch_;
  const Slot* backward_scratch_;

  Operation weights_to_forward_;
  Operation convolve_;
  Operation normalise_training_;
  Operation normalise_evaluation_;
  Operation normalise_backward_;
  Operation weights_to_backward_;
  Operation convolve_backward_data_;
  Operation convolve_backward_weights_;
  Operation gradient_to_stored_;
  dnnl::memory dout_;  // handle set at each backward
};

}  // namespace shakedown::cpu
