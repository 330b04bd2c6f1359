// Products by cuBLASLt.
#include "launch/node/compute/product.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/gpu/operand_kernels.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // cuBLAS's default on Hopper
constexpr int kCandidates = 8;
constexpr int kRuns = 3;

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error("cuBLASLt", expression, file, line, cublasLtGetStatusString(status));
}
#define CHECK_CUBLASLT(expression) check_cublas((expression), #expression, __FILE__, __LINE__)

/// Owns what cuBLASLt creates.
template <class Opaque, cublasStatus_t (*destroy)(Opaque)>
struct Handle {
  Opaque get = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (get != nullptr) destroy(get);
  }
};
using Library = Handle<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t cuda_type(DataType type) {
  switch (type) {
    case DataType::float64: return CUDA_R_64F;
    case DataType::float32: return CUDA_R_32F;
    case DataType::float16: return CUDA_R_16F;
    case DataType::bfloat16: return CUDA_R_16BF;
    case DataType::float8_e4m3: return CUDA_R_8F_E4M3;
    case DataType::int8: return CUDA_R_8I;
    case DataType::int32: return CUDA_R_32I;
    default: throw InternalError(fmt::format("no products of {}", name_of(type)));
  }
}

/// How a type is accumulated, and the type of the factors of A B^T and of C, which are 1 and 0.
struct Arithmetic {
  cublasComputeType_t compute;
  cudaDataType_t scale;
};
Arithmetic arithmetic_of(ProductType type) {
  switch (type) {
    case ProductType::fp64: return {CUBLAS_COMPUTE_64F, CUDA_R_64F};
    case ProductType::fp32: return {CUBLAS_COMPUTE_32F_PEDANTIC, CUDA_R_32F};  // no TF32
    case ProductType::tf32: return {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F};
    case ProductType::int8: return {CUBLAS_COMPUTE_32I, CUDA_R_32I};
    default: return {CUBLAS_COMPUTE_32F, CUDA_R_32F};
  }
}
union Factor {
  double fp64;
  float fp32;
  std::int32_t int32;
};
Factor factor(cudaDataType_t scale, int value) {
  Factor f{};
  switch (scale) {
    case CUDA_R_64F: f.fp64 = value; break;
    case CUDA_R_32I: f.int32 = value; break;
    default: f.fp32 = static_cast<float>(value);
  }
  return f;
}

/// "cublasLt 130100 algorithm 66 tile 20 ...": all that configures it.
std::string text_of(const cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::pair<const char*, cublasLtMatmulAlgoConfigAttributes_t> kAttributes[] = {
      {"algorithm", CUBLASLT_ALGO_CONFIG_ID},
      {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
      {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
      {"split-k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
      {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
      {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING},
      {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION},
      {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID},
      {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID}};
  std::string text = fmt::format("cublasLt {}", cublasLtGetVersion());
  for (const auto& [name, attribute] : kAttributes) {
    std::uint32_t value = 0;  // of 2 or 4 bytes
    std::size_t size = 0;
    CHECK_CUBLASLT(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, nullptr, 0, &size));
    ENSURE(size <= sizeof(value), "an attribute of 4 bytes at most");
    CHECK_CUBLASLT(
        cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, size, nullptr));
    text += fmt::format(" {} {}", name, value);
  }
  return text;
}

/// cuBLASLt has columns where C++ has rows: it computes C^T [n, m] = B A^T, from B^T [k, n] and
/// A^T [k, m], the first transposed.
class CublasProduct final : public Product {
 public:
  CublasProduct(const ProductSpec& spec, Device& device, Stream& stream,
                const std::string& algorithm)
      : spec_(spec),
        device_(device),
        scale_(arithmetic_of(spec.type).scale),
        a_(device, bytes(spec.m * spec.k, operand_type(spec.type))),
        b_(device, bytes(spec.n * spec.k, operand_type(spec.type))),
        c_(device, bytes(spec.m * spec.n, result_type(spec.type))),
        workspace_(device, kWorkspaceBytes) {
    CHECK_CUBLASLT(cublasLtCreate(&library_.get));
    describe();
    choose(algorithm, stream);
  }

  const ProductSpec& spec() const override { return spec_; }
  std::string algorithm() const override { return text_of(algorithm_); }

  void fill(Operands operands, std::uint64_t seed, Stream& stream) override {
    if (operands == Operands::integers) check_exact(spec_);
    for (const int matrix : {0, 1})
      fill_operand(matrix == 0 ? a() : b(), operand_rule(spec_.type, operands, seed, matrix),
                   shakedown::gpu::native(stream));
  }
  void run(Stream& stream) override { CHECK_CUBLASLT(enqueue(algorithm_, stream)); }

  View a() override { return a_.view(operand_type(spec_.type)); }
  View b() override { return b_.view(operand_type(spec_.type)); }
  View c() override { return c_.view(result_type(spec_.type)); }

 private:
  static std::size_t bytes(std::int64_t elements, DataType type) {
    return static_cast<std::size_t>(elements) * size_of(type);
  }

  void describe() {
    const auto make = [](Layout& layout, DataType type, std::int64_t rows, std::int64_t columns) {
      CHECK_CUBLASLT(cublasLtMatrixLayoutCreate(&layout.get, cuda_type(type),
                                                static_cast<std::uint64_t>(rows),
                                                static_cast<std::uint64_t>(columns), rows));
    };
    CHECK_CUBLASLT(
        cublasLtMatmulDescCreate(&operation_.get, arithmetic_of(spec_.type).compute, scale_));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK_CUBLASLT(cublasLtMatmulDescSetAttribute(operation_.get, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transposed, sizeof(transposed)));
    make(first_, operand_type(spec_.type), spec_.k, spec_.n);
    make(second_, operand_type(spec_.type), spec_.k, spec_.m);
    make(result_, result_type(spec_.type), spec_.n, spec_.m);
  }

  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm, Stream& stream) {
    const Factor one = factor(scale_, 1);
    const Factor zero = factor(scale_, 0);
    return cublasLtMatmul(library_.get, operation_.get, &one, b_.data(), first_.get, a_.data(),
                          second_.get, &zero, c_.data(), result_.get, c_.data(), result_.get,
                          &algorithm, workspace_.data(), workspace_.bytes(),
                          shakedown::gpu::native(stream));
  }

  /// The library's, its favourite first, without those of the same text. Partial sums of split-k
  /// stay in the accumulator's type.
  std::vector<cublasLtMatmulAlgo_t> candidates() {
    Preference preference;
    CHECK_CUBLASLT(cublasLtMatmulPreferenceCreate(&preference.get));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      CHECK_CUBLASLT(
          cublasLtMatmulPreferenceSetAttribute(preference.get, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library_.get, operation_.get, first_.get, second_.get, result_.get, result_.get,
        preference.get, kCandidates, found.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) CHECK_CUBLASLT(status);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    std::vector<std::string> texts;
    for (int i = 0; i < count; ++i) {
      const auto& one = found[static_cast<std::size_t>(i)];
      if (one.state != CUBLAS_STATUS_SUCCESS) continue;
      const std::string text = text_of(one.algo);
      if (std::find(texts.begin(), texts.end(), text) != texts.end()) continue;
      texts.push_back(text);
      algorithms.push_back(one.algo);
    }
    if (algorithms.empty())
      throw UsageError(fmt::format("cuBLASLt has no {} product with m = {}, n = {}, k = {} here",
                                   name_of(spec_.type), spec_.m, spec_.n, spec_.k));
    return algorithms;
  }

  void choose(const std::string& algorithm, Stream& stream) {
    const std::vector<cublasLtMatmulAlgo_t> all = candidates();
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

  /// By its fastest run, on data as they are measured; the candidates interleaved. One that the
  /// library then refuses is left out.
  cublasLtMatmulAlgo_t fastest(const std::vector<cublasLtMatmulAlgo_t>& all, Stream& stream) {
    fill(Operands::full_entropy, 0, stream);
    std::vector<double> best_ms(all.size(), std::numeric_limits<double>::infinity());
    const auto start = device_.make_event();
    const auto end = device_.make_event();
    for (int run = 0; run <= kRuns; ++run)  // the first loads the kernels
      for (std::size_t i = 0; i < all.size(); ++i) {
        start->record(stream);
        const bool runs = enqueue(all[i], stream) == CUBLAS_STATUS_SUCCESS;
        end->record(stream);
        end->synchronize();
        if (runs && run > 0) best_ms[i] = std::min(best_ms[i], end->milliseconds_since(*start));
      }
    const auto best = std::min_element(best_ms.begin(), best_ms.end());
    if (*best == std::numeric_limits<double>::infinity())
      throw InternalError(fmt::format("cuBLASLt runs none of its own {} algorithms for {} products",
                                      all.size(), name_of(spec_.type)));
    return all[static_cast<std::size_t>(best - best_ms.begin())];
  }

  ProductSpec spec_;
  Device& device_;
  cudaDataType_t scale_;
  Buffer a_, b_, c_, workspace_;
  Library library_;
  Operation operation_;
  Layout first_, second_, result_;
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
