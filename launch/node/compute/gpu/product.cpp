// Products by cuBLASLt.
#include "launch/node/compute/product.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kCandidates = 6;
constexpr std::size_t kBlockScaling = 120800;                   // the first cuBLAS that has it
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // cuBLAS's on Hopper

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw_library_error("cuBLASLt", expression, file, line, cublasLtGetStatusString(status));
}
#define CHECK_CUBLASLT(expression) check_cublas((expression), #expression, __FILE__, __LINE__)

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

cudaDataType_t cuda_type(DataType type) {
  switch (type) {
    case DataType::float64: return CUDA_R_64F;
    case DataType::float32: return CUDA_R_32F;
    case DataType::float16: return CUDA_R_16F;
    case DataType::bfloat16: return CUDA_R_16BF;
    case DataType::float8_e4m3: return CUDA_R_8F_E4M3;
    case DataType::int8: return CUDA_R_8I;
    case DataType::int32: return CUDA_R_32I;
#if CUBLAS_VERSION >= 120800
    case DataType::uint8: return CUDA_R_4F_E2M1;  // two in each
#endif
    default: throw InternalError(fmt::format("no products of {}", name_of(type)));
  }
}

/// In what is accumulated.
cublasComputeType_t compute_of(ProductType type) {
  switch (type) {
    case ProductType::fp64: return CUBLAS_COMPUTE_64F;
    case ProductType::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case ProductType::int8: return CUBLAS_COMPUTE_32I;
    default: return CUBLAS_COMPUTE_32F;  // fp32: no TF32 either, which sampled_error() would find
  }
}

/// Of the factors of A B^T and of C, which are 1 and 0.
cudaDataType_t scale_of(ProductType type) {
  switch (type) {
    case ProductType::fp64: return CUDA_R_64F;
    case ProductType::int8: return CUDA_R_32I;
    default: return CUDA_R_32F;
  }
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

/// cuBLASLt has columns where C++ has rows: it computes C^T [n, m] from B as its first matrix and A
/// as its second.
class CublasProduct final : public Product {
 public:
  CublasProduct(const ProductSpec& spec, Device& device, Stream& stream,
                const std::string& algorithm)
      : Product(spec, device), workspace_(device, kWorkspaceBytes) {
    CHECK_CUBLASLT(cublasLtCreate(&library_.get));
    CHECK_CUBLASLT(
        cublasLtMatmulDescCreate(&operation_.get, compute_of(spec.type), scale_of(spec.type)));
    const cublasOperation_t of_b = CUBLAS_OP_T;
    CHECK_CUBLASLT(cublasLtMatmulDescSetAttribute(operation_.get, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &of_b, sizeof(of_b)));
    const auto make = [](Layout& layout, DataType type, std::int64_t rows, std::int64_t columns) {
      CHECK_CUBLASLT(cublasLtMatrixLayoutCreate(&layout.get, cuda_type(type),
                                                static_cast<std::uint64_t>(rows),
                                                static_cast<std::uint64_t>(columns), rows));
    };
    make(first_, operand_type(spec.type), spec.k, spec.n);
    make(second_, operand_type(spec.type), spec.k, spec.m);
    make(result_, result_type(spec.type), spec.n, spec.m);
    if (scale_block(spec.type) > 0) scale_blocks(device, stream);
    choose(algorithm, stream);
  }

  std::string algorithm() const override { return text_of(algorithm_); }

  std::vector<std::string> algorithms() const override {
    std::vector<std::string> texts;
    for (const cublasLtMatmulAlgo_t& one : candidates()) texts.push_back(text_of(one));
    return texts;
  }

  void run(Stream& stream) override {
    check_cublas(enqueue(algorithm_, stream), "cublasLtMatmul", __FILE__, __LINE__);
  }

 private:
  using Layout = CublasHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  union Factor {
    double fp64;
    float fp32;
    std::int32_t int32;
  };

  Factor factor(int value) const {
    Factor f{};
    switch (scale_of(spec().type)) {
      case CUDA_R_64F: f.fp64 = value; break;
      case CUDA_R_32I: f.int32 = value; break;
      default: f.fp32 = static_cast<float>(value);
    }
    return f;
  }

  /// One buffer for A and B: all factors are 1, in whatever order cuBLASLt reads them. Without the
  /// pointers its heuristic is an error. By the documentation: it has not run on Blackwell.
  void scale_blocks([[maybe_unused]] Device& device, [[maybe_unused]] Stream& stream) {
#if CUBLAS_VERSION >= 120800
    const bool of_32 = scale_block(spec().type) == 32;
    const int one = of_32 ? 0x7F : 0x38;  // in UE8M0 and in UE4M3
    const std::int32_t mode =
        of_32 ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 : CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    scales_ = Buffer(device, scale_bytes(spec()));
    CHECK_CUDA(
        cudaMemsetAsync(scales_.data(), one, scales_.bytes(), shakedown::gpu::native(stream)));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      CHECK_CUBLASLT(
          cublasLtMatmulDescSetAttribute(operation_.get, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales_.data());
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales_.data());
#endif
  }

  /// The library's, its first choice first, without those of the same text; none where it has none.
  /// Partial sums of split-k stay in the accumulator's type.
  std::vector<cublasLtMatmulAlgo_t> candidates() const {
    CublasHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    CHECK_CUBLASLT(cublasLtMatmulPreferenceCreate(&preference.get));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      CHECK_CUBLASLT(
          cublasLtMatmulPreferenceSetAttribute(preference.get, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
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
    return algorithms;
  }

  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm, Stream& stream) {
    const Factor one = factor(1);
    const Factor zero = factor(0);
    void* const c = this->c().data;
    return cublasLtMatmul(library_.get, operation_.get, &one, b().data, first_.get, a().data,
                          second_.get, &zero, c, result_.get, c, result_.get, &algorithm,
                          workspace_.data(), kWorkspaceBytes, shakedown::gpu::native(stream));
  }

  /// Runs it once, which loads the kernel.
  void choose(const std::string& algorithm, Stream& stream) {
    const std::vector<cublasLtMatmulAlgo_t> all = candidates();
    if (all.empty()) {
      const std::string text =
          fmt::format("cuBLASLt {} has no {} product with m = {}, n = {}, k = {} here: {}",
                      cublasLtGetVersion(), name_of(spec().type), spec().m, spec().n, spec().k,
                      cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED));
      if (scale_block(spec().type) > 0) throw NotSupported(text);
      throw UsageError(text);  // a GPU without one of the others has none to be judged by
    }
    const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) {
      return algorithm.empty() ? enqueue(one, stream) == CUBLAS_STATUS_SUCCESS
                               : text_of(one) == algorithm;
    });
    if (found == all.end() && algorithm.empty())
      throw InternalError(fmt::format("cuBLASLt runs none of its own {} algorithms for {} products",
                                      all.size(), name_of(spec().type)));
    if (found == all.end())
      throw UsageError(fmt::format("algorithm '{}': cublasLt {} has no such {} product on this GPU",
                                   algorithm, cublasLtGetVersion(), name_of(spec().type)));
    algorithm_ = *found;
  }

  Buffer workspace_, scales_;
  CublasHandle<cublasLtHandle_t, cublasLtDestroy> library_;
  CublasHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
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
    const bool scaled = scale_block(type) > 0;
    if (scaled && (CUBLAS_VERSION < kBlockScaling || cublasLtGetVersion() < kBlockScaling))
      continue;
    const int needed = scaled ? 100 : type == ProductType::fp8 ? 89 : needs_ampere ? 80 : 0;
    if (10 * major + minor >= needed) types.push_back(type);
  }
  return types;
}

std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm) {
  return std::make_unique<CublasProduct>(spec, device, stream, algorithm);
}

}  // namespace shakedown::node::gpu
