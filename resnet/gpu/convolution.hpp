// Convolutions: one direction of one, by cuDNN's plan for it; with the norm after it; and where
// that norm goes through the Gram matrix.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <optional>
#include <vector>

#include "resnet/gpu/handles.hpp"

namespace shakedown::gpu {

/// One direction of one convolution.
class Convolution {
 public:
  /// `layer` names it in the log.
  Convolution(GpuContext& context, ConvKind kind, const NormedConv& layer);

  /// False where cuDNN has no algorithm.
  bool exists() const { return !choice_.candidates.empty(); }
  /// Enough for every candidate.
  std::size_t workspace_bytes() const;
  /// Times the candidates, unless autotune is off or an equal convolution was timed: overwrites
  /// the buffers but the weights, which are those of the first step.
  void bind(const ConvBuffers& buffers, void* workspace);
  void run() const;
  const Work& work() const { return work_; }

 private:
  GpuContext& context_;
  ConvKind kind_;
  ConvShape conv_;
  Work work_;
  ConvChoice& choice_;
  std::optional<BoundPlan> bound_;
};

// Products over the rows of two tall matrices, as a weight gradient is, in float32 and in parts.

/// c[p] = (part p of a's rows)' (part p of b's rows). a is rows x left, b is rows x right, of a
/// 16-bit type; c is parts x left x right of float32. No algorithm adds up results of its own, so
/// the number of partial sums is `parts` whatever the timing prefers.
class PartedProduct {
 public:
  struct Shape {
    std::size_t rows;
    int parts;  // divides the rows
    int left;
    int right;
    DataType type;
  };
  /// The workspace's bytes may be 0.
  PartedProduct(const BlasHandle& handle, const Shape& shape, std::size_t workspace_bytes);

  /// The library's best guess first; 0 where it has none.
  std::size_t algorithms() const { return algorithms_.size(); }
  /// Enqueues.
  void run(std::size_t algorithm, const void* a, const void* b, float* c, void* workspace,
           cudaStream_t stream) const;

 private:
  cublasLtHandle_t handle_;
  std::size_t workspace_bytes_;
  // the library's functions take them without const
  mutable cublasLtMatmulDescOpaque_t product_{};
  mutable cublasLtMatrixLayoutOpaque_t left_{}, right_{}, result_{};
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

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
  AddedNorm norm() const { return {z(), vectors(), parameters()}; }
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

// A block's last convolution and the norm after it through the Gram matrix (unit_kernels.hpp).

/// In NormedConvolution's place, with neither z nor dz in memory: forward it makes the vectors that
/// normalise z before z is computed; what computes z is the unit's.
class GramConvolution {
 public:
  using Tensors = NormedConvolution::Tensors;  // dz is null
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
  /// left' right in parts, by the fastest algorithm.
  class Product {
   public:
    Product(const GpuContext& context, const Work& work, const PartedProduct::Shape& shape,
            const Slot* left, const Slot* right, int moment);
    void bind(Tuner& tuner);
    void run() const;
    const float* parts() const { return parts_->as<float>(); }
    int count() const { return shape_.parts; }
    double bytes() const { return static_cast<double>(parts_->bytes()); }

   private:
    void run(std::size_t algorithm) const;

    const GpuContext& context_;
    PartedProduct::Shape shape_;
    PartedProduct product_;
    Work work_;
    const Slot *left_, *right_, *parts_;
    std::optional<std::size_t> algorithm_;  // none before they were timed
  };
  std::size_t channels() const { return static_cast<std::size_t>(layer_.conv.x.c); }
  std::size_t filters() const { return static_cast<std::size_t>(layer_.conv.k); }
  const Slot* reserve(const char* name, std::size_t count, int first,
                      DataType type = DataType::float32) const;
  GramMatrices matrices() const;

  GpuContext& context_;
  NormedConv layer_;
  Moments when_;
  Tensors tensors_;
  FusableReduction& inner_;
  const Slot* sum_of_x_;
  Product gram_product_;                   // of x with itself
  Product d_product_;                      // of dnormed with x
  std::optional<Convolution> of_dnormed_;  // dnormed (a w), where dx is made in two products
  const Slot *vectors_, *gram_;            // from forward on
  const Slot *sum_, *d_, *largest_, *bias_, *unscale_, *placed_, *scaled_,
      *workspace_;  // of backward
};

}  // namespace shakedown::gpu
