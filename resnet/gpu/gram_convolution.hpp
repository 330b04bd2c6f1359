// A block's last convolution and the norm after it through the Gram matrix (unit_kernels.hpp).
#pragma once

#include <optional>

#include "resnet/gpu/convolution.hpp"

namespace shakedown::gpu {

/// In NormedConvolution's place, with neither z nor dz in memory: forward it makes the vectors that
/// normalise z before z is computed; what computes z is the unit's.
class GramConvolution {
 public:
  struct Tensors {
    const Slot* x;
    const Slot* x_in_backward;  // x again, where backward reads it
    const Slot* dnormed;        // gradient of the normalised z
    const Slot* dx;
  };
  /// Whether it takes NormedConvolution's place: it exists here, and is requested or pays. `inner`
  /// is the reduction over the convolution's dx, or null.
  static bool replaces(const GpuContext& context, const ConvShape& conv,
                       const FusableReduction* inner);

  GramConvolution(GpuContext& context, const NormedConv& layer, Moments when,
                  const Tensors& tensors, FusableReduction& inner);

  void bind();
  void forward(Pass pass) const;
  NormVectors vectors() const { return NormVectors::in(vectors_->as<float>(), layer_.conv.k); }
  ForwardProduct z() const;
  /// Gets the sum of dnormed of each channel before backward().
  float* sum() const { return sum_->as<float>(); }
  void backward() const;

 private:
  /// The product of dnormed or of x with x, in parts.
  struct Product {
    Product(const GpuContext& context, const PartedProduct::Shape& shape, int moment);
    PartedProduct::Shape shape;
    PartedProduct product;
    const Slot* parts;
    std::optional<std::size_t> algorithm;  // none before they were timed
  };
  std::size_t channels() const { return static_cast<std::size_t>(layer_.conv.x.c); }
  std::size_t filters() const { return static_cast<std::size_t>(layer_.conv.k); }
  const Slot* reserve(const char* name, std::size_t floats, int first) const;
  GramMatrices matrices() const;
  void choose(Product& product, const Slot& left, const Slot& right) const;
  void run(const Product& product, std::size_t algorithm, const Slot& left,
           const Slot& right) const;
  void log(const char* name, const Product& product, const Slot& left, const Slot& right) const;

  GpuContext& context_;
  NormedConv layer_;
  Moments when_;
  Tensors tensors_;
  FusableReduction& inner_;
  const Slot* sum_of_x_;
  Product gram_product_;
  Product d_product_;
  std::optional<Convolution> of_dnormed_;  // dnormed (a w), where dx is made in two products
  const Slot *vectors_, *gram_;            // from forward on
  const Slot *sum_, *d_, *largest_, *bias_, *unscale_, *placed_, *scaled_,
      *workspace_;  // of backward
};

}  // namespace shakedown::gpu
