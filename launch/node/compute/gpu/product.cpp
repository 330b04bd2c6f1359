// Products by cuBLASLt.
#include "launch/node/compute/gpu/product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/product.hpp"

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

namespace {

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error("cuBLASLt", expression, file, line, cublasLtGetStatusString(status));
}
#define CHECK_CUBLASLT(expression) check_cublas((expression), #expression, __FILE__, __LINE__)

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

cudaDataType_t scale_of(ProductType type) {
  switch (type) {
    case ProductType::fp64: return CUDA_R_64F;
    case ProductType::int8: return CUDA_R_32I;
    default: return CUDA_R_32F;
  }
}

void make(cublasLtMatrixLayout_t& layout, DataType type, std::int64_t rows, std::int64_t columns) {
  CHECK_CUBLASLT(cublasLtMatrixLayoutCreate(&layout, cuda_type(type),
                                            static_cast<std::uint64_t>(rows),
                                            static_cast<std::uint64_t>(columns), rows));
}

}  // namespace

MatmulChoices choices_of(ProductType type) {
  MatmulChoices choices;
  switch (type) {
    case ProductType::fp64: choices.compute = CUBLAS_COMPUTE_64F; break;
    case ProductType::tf32: choices.compute = CUBLAS_COMPUTE_32F_FAST_TF32; break;
    case ProductType::int8: choices.compute = CUBLAS_COMPUTE_32I; break;
    default: break;  // fp32: no TF32 either, which sampled_error() would find
  }
  return choices;
}

Matmul::Matmul(const ProductSpec& spec, const MatmulChoices& choices)
    : reductions_(choices.reductions), scale_(scale_of(spec.type)) {
  CHECK_CUBLASLT(cublasLtCreate(&library_.get));
  CHECK_CUBLASLT(cublasLtMatmulDescCreate(&operation_.get, choices.compute, scale_));
  const cublasOperation_t of_b = choices.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  CHECK_CUBLASLT(cublasLtMatmulDescSetAttribute(operation_.get, CUBLASLT_MATMUL_DESC_TRANSA, &of_b,
                                                sizeof(of_b)));
  const DataType operand = operand_type(spec.type);
  make(first_.get, operand, choices.b_transposed ? spec.k : spec.n,
       choices.b_transposed ? spec.n : spec.k);
  make(second_.get, operand, spec.k, spec.m);
  make(result_.get, result_type(spec.type), spec.n, spec.m);
}

Matmul::Factor Matmul::factor(int value) const {
  Factor f{};
  switch (scale_) {
    case CUDA_R_64F: f.fp64 = value; break;
    case CUDA_R_32I: f.int32 = value; break;
    default: f.fp32 = static_cast<float>(value);
  }
  return f;
}

std::vector<cublasLtMatmulAlgo_t> Matmul::algorithms(int most) const {
  CublasHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  CHECK_CUBLASLT(cublasLtMatmulPreferenceCreate(&preference.get));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    CHECK_CUBLASLT(
        cublasLtMatmulPreferenceSetAttribute(preference.get, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions_);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      library_.get, operation_.get, first_.get, second_.get, result_.get, result_.get,
      preference.get, most, found.data(), &count);
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
  return algorithms;
}

cublasStatus_t Matmul::enqueue(const cublasLtMatmulAlgo_t& algorithm, const void* a, const void* b,
                               void* c, void* workspace, Stream& stream) const {
  const Factor one = factor(1);
  const Factor zero = factor(0);
  return cublasLtMatmul(library_.get, operation_.get, &one, b, first_.get, a, second_.get, &zero, c,
                        result_.get, c, result_.get, &algorithm, workspace, kWorkspaceBytes,
                        shakedown::gpu::native(stream));
}

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

}  // namespace shakedown::node::gpu
