// Products by cuBLASLt.
#include "launch/node/compute/product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/gpu/cublas_lt.hpp"
#include "launch/node/compute/gpu/operand_kernels.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kCandidates = 6;

class CublasProduct final : public Product {
 public:
  CublasProduct(const ProductSpec& spec, Device& device, Stream& stream,
                const std::string& algorithm)
      : spec_(spec),
        matmul_(spec, choices_of(spec.type)),
        a_(device, bytes(spec.m * spec.k, operand_type(spec.type))),
        b_(device, bytes(spec.n * spec.k, operand_type(spec.type))),
        c_(device, bytes(spec.m * spec.n, result_type(spec.type))),
        workspace_(device, Matmul::kWorkspaceBytes) {
    choose(algorithm, stream);
  }

  const ProductSpec& spec() const override { return spec_; }
  std::string algorithm() const override { return text_of(algorithm_); }

  void fill(Operands operands, std::uint64_t seed, Stream& stream) override {
    if (operands == Operands::integers) check_exact(spec_);
    const cudaStream_t on = shakedown::gpu::native(stream);
    fill_operand(a(), operand_rule(spec_.type, operands, seed, 0), on);
    fill_operand(b(), operand_rule(spec_.type, operands, seed, 1), on);
  }
  void run(Stream& stream) override {
    const cublasStatus_t status = enqueue(algorithm_, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
      throw_library_error("cuBLASLt", "cublasLtMatmul", __FILE__, __LINE__,
                          cublasLtGetStatusString(status));
  }

  View a() override { return a_.view(operand_type(spec_.type)); }
  View b() override { return b_.view(operand_type(spec_.type)); }
  View c() override { return c_.view(result_type(spec_.type)); }

 private:
  static std::size_t bytes(std::int64_t elements, DataType type) {
    return static_cast<std::size_t>(elements) * size_of(type);
  }

  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm, Stream& stream) {
    return matmul_.enqueue(algorithm, a_.data(), b_.data(), c_.data(), workspace_.data(), stream);
  }

  /// Runs it once, which loads the kernel.
  void choose(const std::string& algorithm, Stream& stream) {
    const std::vector<cublasLtMatmulAlgo_t> all = matmul_.algorithms(kCandidates);
    if (all.empty())
      throw UsageError(fmt::format("cuBLASLt has no {} product with m = {}, n = {}, k = {} here",
                                   name_of(spec_.type), spec_.m, spec_.n, spec_.k));
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
      return algorithm.empty() ? enqueue(one, stream) == CUBLAS_STATUS_SUCCESS
                               : text_of(one) == algorithm;
    });
    if (found == all.end() && algorithm.empty())
      throw InternalError(fmt::format("cuBLASLt runs none of its own {} algorithms for {} products",
                                      all.size(), name_of(spec_.type)));
    if (found == all.end())
      throw UsageError(fmt::format("algorithm '{}': cublasLt {} has no such {} product on this GPU",
                                   algorithm, cublasLtGetVersion(), name_of(spec_.type)));
    algorithm_ = *found;
  }

  ProductSpec spec_;
  Matmul matmul_;
  Buffer a_, b_, c_, workspace_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace

std::vector<ProductType> product_types() {
  int device = 0;
  int major = 0;
  int minor = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  std::vector<ProductType> types;
  for (const ProductType type : all_product_types()) {
    const bool needs_ampere = type == ProductType::tf32 || type == ProductType::bf16;
    const int needed = type == ProductType::fp8 ? 89 : needs_ampere ? 80 : 0;
    if (10 * major + minor >= needed) types.push_back(type);
  }
  return types;
}

std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm) {
  return std::make_unique<CublasProduct>(spec, device, stream, algorithm);
}

}  // namespace shakedown::node::gpu
