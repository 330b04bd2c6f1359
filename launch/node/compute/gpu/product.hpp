// One matrix product by cuBLASLt: its description, the library's algorithms for it, and a run of
// one of them.
#pragma once

#include <cublasLt.h>

#include <string>
#include <vector>

#include "common/device.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node::gpu {

template <class Opaque, cublasStatus_t (*destroy)(Opaque)>
struct CublasHandle {
  Opaque get = nullptr;
  CublasHandle() = default;
  CublasHandle(const CublasHandle&) = delete;
  CublasHandle& operator=(const CublasHandle&) = delete;
  ~CublasHandle() {
    if (get != nullptr) destroy(get);
  }
};

/// What a description leaves open.
struct MatmulChoices {
  bool b_transposed = true;  // B is [n, k]; else [k, n]
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;  // of split-k
};
/// Those of the products that are measured. Partial sums of split-k stay in the accumulator's type.
MatmulChoices choices_of(ProductType type);

/// C = A B^T or A B, row-major, without the memory. cuBLASLt has columns where C++ has rows: it
/// computes C^T [n, m] from B as its first matrix and A as its second.
class Matmul {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // cuBLAS's on Hopper

  Matmul(const ProductSpec& spec, const MatmulChoices& choices);

  /// The library's, its first choice first, without those of the same text; none where it has none.
  std::vector<cublasLtMatmulAlgo_t> algorithms(int most) const;
  /// `workspace` has kWorkspaceBytes.
  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b,
                         void* c, void* workspace, Stream& stream) const;

 private:
  union Factor {
    double fp64;
    float fp32;
    std::int32_t int32;
  };
  Factor factor(int value) const;

  std::uint32_t reductions_;
  cudaDataType_t scale_;  // of the factors of A B and of C, which are 1 and 0
  CublasHandle<cublasLtHandle_t, cublasLtDestroy> library_;
  CublasHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  CublasHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> first_, second_, result_;
};

/// "cublasLt 130100 algorithm 66 tile 20 ...": all that configures it.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm);

/// x[i] = the operand's element i.
void fill_operand(View x, const OperandRule& rule, cudaStream_t stream);

}  // namespace shakedown::node::gpu
