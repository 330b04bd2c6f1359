// What the cpu units share: the engine, layouts, and a convolution with its normalisation.
#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <string>

#include "resnet/cpu/onednn.hpp"
#include "resnet/units.hpp"

namespace shakedown::cpu {

struct Shared {
  explicit Shared(const UnitContext& context) : context(context) {}

  UnitContext context;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  Tag tag = preferred_activation_tag(engine);
  std::map<std::string, Desc> weight_layouts;  // parameter name -> layout in the flat buffers

  dnnl::memory memory(const Desc& desc, void* data) const { return {desc, engine, data}; }
  dnnl::memory memory(const Desc& desc, const Slot* slot) const {
    return {desc, engine, slot->data()};
  }

  /// Runs `body`, which moves so many bytes for the layer with these weights.
  template <std::invocable Body>
  void run(const char* kernel, int weight, double bytes, Body&& body) const {
    context.log.run({kernel, weight, bytes, 0}, body);
  }
  void run(const char* kernel, int weight, double bytes, const Operation& operation) {
    run(kernel, weight, bytes, [&] { operation.run(stream); });
  }
};

inline double bytes_of(const Desc& desc) { return static_cast<double>(desc.get_size()); }

/// C = A B + beta C in float32, row by row; A and B are transposed where that is 'T', not 'N'. C is
/// m x n, A m x k.
struct GemmShape {
  char ta, tb;
  dnnl_dim_t m, n, k;
};
void gemm(const GemmShape& shape, const float* a, const float* b, float beta, float* c);

// As PyTorch's: a NaN stays, and passes its gradient. (oneDNN's ReLU and max-pool drop it.)
inline bool relu_stops(float x) { return x <= 0; }
inline float relu(float x) { return relu_stops(x) ? 0.0F : x; }

/// out = norm(conv(x)) and its backward pass.
class NormedConvolution {
 public:
  /// `x_desc` is x's layout; `dx` may be null: the gradient of x is not needed.
  NormedConvolution(Shared& shared, const NormedConv& layer, Moments when, const Desc& x_desc,
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
  /// Where a primitive wants the weights in another layout.
  void reorder_weights(const Operation& operation) const;

  Shared& shared_;
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

std::unique_ptr<Unit> make_stem(Shared& shared, const StemSpec& spec);
std::unique_ptr<Unit> make_conv_norm(Shared& shared, const ConvNormSpec& spec);
std::unique_ptr<Unit> make_conv_norm_add(Shared& shared, const ConvNormAddSpec& spec);
std::unique_ptr<Unit> make_head(Shared& shared, const HeadSpec& spec);

Roofs measure_roofs(Shared& shared);

}  // namespace shakedown::cpu
