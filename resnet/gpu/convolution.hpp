// One direction of one convolution: cuDNN's plan for it, chosen and bound.
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
  void tune(const ConvBuffers& buffers, void* workspace);

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

}  // namespace shakedown::gpu
