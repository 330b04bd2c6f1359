// Products by cuBLASLt.
#include "launch/node/compute/product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "common/statistics.hpp"
#include "launch/node/compute/gpu/cublas_lt.hpp"
#include "launch/node/compute/gpu/operand_kernels.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kCandidates = 6;
// A candidate is timed for kTurns * kTurn_ms, interleaved with the others: as long as clocks need
// to settle, for what is measured later runs for seconds.
constexpr int kTurns = 3;
constexpr double kTurn_ms = 50;
constexpr int kMostRuns = 60;  // of a turn: more than 8192 x 8192 x 8192 needs in any type

class CublasProduct final : public Product {
 public:
  CublasProduct(const ProductSpec& spec, Device& device, Stream& stream,
                const std::string& algorithm)
      : spec_(spec),
        device_(device),
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
    fill_operand(a(), operand_rule(spec_.type, operands, seed, 0), 0, on);
    fill_operand(b(), operand_rule(spec_.type, operands, seed, 1),
                 choices_of(spec_.type).b_transposed ? 0 : static_cast<std::size_t>(spec_.n), on);
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

  void choose(const std::string& algorithm, Stream& stream) {
    const std::vector<cublasLtMatmulAlgo_t> all = matmul_.algorithms(kCandidates);
    if (all.empty())
      throw UsageError(fmt::format("cuBLASLt has no {} product with m = {}, n = {}, k = {} here",
                                   name_of(spec_.type), spec_.m, spec_.n, spec_.k));
    if (algorithm.empty()) {
      algorithm_ = fastest(all, stream);
      return;
    }
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const auto& one) { return text_of(one) == algorithm; });
    if (same == all.end())
      throw UsageError(fmt::format("algorithm '{}': cublasLt {} has no such {} product on this GPU",
                                   algorithm, cublasLtGetVersion(), name_of(spec_.type)));
    algorithm_ = *same;
  }

  /// Milliseconds of a product; infinity where the library refuses it.
  double time_ms(const cublasLtMatmulAlgo_t& algorithm, int runs, Stream& stream) {
    const auto start = device_.make_event();
    const auto end = device_.make_event();
    start->record(stream);
    for (int run = 0; run < runs; ++run)
      if (enqueue(algorithm, stream) != CUBLAS_STATUS_SUCCESS)
        return std::numeric_limits<double>::infinity();
    end->record(stream);
    end->synchronize();
    return end->milliseconds_since(*start) / runs;
  }

  /// Under load and on data as they are measured.
  cublasLtMatmulAlgo_t fastest(const std::vector<cublasLtMatmulAlgo_t>& all, Stream& stream) {
    fill(Operands::full_entropy, 0, stream);
    std::vector<int> runs(all.size(), 0);  // of a turn; 0: refused
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::isfinite(time_ms(all[i], 1, stream)))  // which loads the kernel
        runs[i] = static_cast<int>(
            std::clamp<double>(kTurn_ms / time_ms(all[i], 1, stream), 1, kMostRuns));
    std::vector<std::vector<double>> times(all.size());
    for (int turn = 0; turn < kTurns; ++turn)
      for (std::size_t i = 0; i < all.size(); ++i)
        if (runs[i] > 0) times[i].push_back(time_ms(all[i], runs[i], stream));
    std::vector<double> typical;
    for (const std::vector<double>& of_one : times)
      typical.push_back(of_one.empty() ? std::numeric_limits<double>::infinity()
                                       : median_of(of_one));
    const std::size_t best = preferred(typical);
    if (!std::isfinite(typical[best]))
      throw InternalError(fmt::format("cuBLASLt runs none of its own {} algorithms for {} products",
                                      all.size(), name_of(spec_.type)));
    return all[best];
  }

  ProductSpec spec_;
  Device& device_;
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
