// Products over the rows of two tall matrices, as a weight gradient is, in float32 and in parts.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <vector>

#include "resnet/gpu/handles.hpp"

namespace shakedown::gpu {

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
  template <class T>
  struct Destroy {
    cublasStatus_t (*function)(T);
    void operator()(T handle) const { function(handle); }
  };
  template <class T>
  using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T>>;
  using Layout = Owned<cublasLtMatrixLayout_t>;

  static Layout layout(cudaDataType type, std::size_t rows, int columns, int parts,
                       std::size_t part);

  cublasLtHandle_t handle_;
  std::size_t workspace_bytes_;
  Owned<cublasLtMatmulDesc_t> product_;
  Layout left_;
  Layout right_;
  Layout result_;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace shakedown::gpu
