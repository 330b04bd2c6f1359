// Backward of a block's last convolution and the norm after it through the Gram matrix
// (gram_kernels.hpp).
#pragma once

#include <optional>

#include "resnet/gpu/context.hpp"
#include "resnet/gpu/cublas_products.hpp"

namespace shakedown::gpu {

/// In NormedConvolution::backward's place where that is faster: it reads no z and writes no dz.
class GramConvolution {
 public:
  struct Tensors {
    const Slot* x;        // as backward reads it
    const Slot* dnormed;  // gradient of the normalised z
  };
  /// Whether the convolution has this form here: `inner` is the reduction over its dx, or null.
  static bool exists(const GpuContext& context, const ConvShape& conv,
                     const FusableReduction* inner);
  static std::string key(const GpuContext& context, const ConvShape& conv);

  GramConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                  const Tensors& tensors, FusableReduction& inner);

  /// False where cublasLt has no algorithm: then it is not bound.
  bool usable() const {
    return d_product_.product.algorithms() > 0 && gram_product_.product.algorithms() > 0;
  }
  void bind();
  /// Gets the sum of dnormed of each channel before backward().
  float* sum() const { return sum_->as<float>(); }
  void backward(const NormParameters& parameters, const NormVectors& vectors) const;
  /// Enqueues: random data for x and its sums, to be timed on.
  void randomise_inputs() const;

 private:
  /// The product of dnormed or of x with x, in parts.
  struct Product {
    Product(const GpuContext& context, const PartedProduct::Shape& shape, Moments when);
    PartedProduct::Shape shape;
    PartedProduct product;
    const Slot* parts;
    std::size_t algorithm = 0;
  };
  std::size_t channels() const { return static_cast<std::size_t>(layer_.conv.x.c); }
  std::size_t filters() const { return static_cast<std::size_t>(layer_.conv.k); }
  const Slot* reserve(const char* name, std::size_t floats) const;
  GramMatrices matrices() const;
  void choose(Product& product, const Slot& left) const;
  void run(const char* name, const Product& product, const Slot& left) const;
  void run_gradient_of_weights(const NormVectors& vectors) const;

  GpuContext& context_;
  NormedConv layer_;
  Moments when_;
  Tensors tensors_;
  FusableReduction& inner_;
  const Slot* sum_of_x_;
  Product d_product_;
  Product gram_product_;
  const Slot *sum_, *d_, *gram_, *largest_, *bias_, *unscale_, *placed_;
};

}  // namespace shakedown::gpu
