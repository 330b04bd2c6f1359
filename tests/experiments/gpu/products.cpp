// Products: which layout, arithmetic, reduction and algorithm is fastest under load, and what the
// data cost. The control is what PyTorch calls: cublasGemmEx.
#include <cublas_v2.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/gpu/product.hpp"
#include "tests/experiments/gpu/experiment.hpp"

namespace shakedown::experiments {
namespace {

using namespace node;
using node::gpu::Matmul;
using node::gpu::MatmulChoices;

constexpr int kMostAlgorithms = 4;

/// What all variants of a type share: the product as it is measured, with its memory.
struct Subject {
  Subject(const Bench& bench, ProductType type, int size)
      : bench(bench),
        spec{type, size, size, size},
        product(make_product(spec, bench.device, bench.stream)),
        workspace(bench.device, Matmul::kWorkspaceBytes) {}

  const Bench& bench;
  ProductSpec spec;
  std::unique_ptr<Product> product;
  Buffer workspace;
};

std::string name_of_compute(cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_32F_PEDANTIC: return "32F_PEDANTIC";
    case CUBLAS_COMPUTE_32F_FAST_TF32: return "32F_FAST_TF32";
    case CUBLAS_COMPUTE_32F: return "32F";
    case CUBLAS_COMPUTE_64F: return "64F";
    case CUBLAS_COMPUTE_32I: return "32I";
    default: return std::to_string(static_cast<int>(compute));
  }
}

void add_algorithms(const Subject& subject, const MatmulChoices& choices,
                    std::vector<Variant>& variants) {
  const auto matmul = std::make_shared<Matmul>(subject.spec, choices);
  const bool restricted = choices.reductions == CUBLASLT_REDUCTION_SCHEME_NONE;
  const std::string kind =
      fmt::format("{} {}", choices.b_transposed ? "TN" : "NN", name_of_compute(choices.compute));
  int number = 0;
  for (const cublasLtMatmulAlgo_t& algorithm : matmul->algorithms(kMostAlgorithms)) {
    const std::string text = node::gpu::text_of(algorithm).substr(9);
    const std::string name =
        fmt::format("{} #{}{} {}", kind, number++, restricted ? " no-reduction" : "", text);
    if (restricted && std::any_of(variants.begin(), variants.end(), [&](const Variant& other) {
          return other.name.starts_with(kind + " #") && other.name.ends_with(text);
        }))
      continue;  // one of those without a restriction
    variants.push_back(
        {name, flop_of(subject.spec), [&subject, matmul, algorithm] {
           return matmul->enqueue(algorithm, subject.product->a().data, subject.product->b().data,
                                  subject.product->c().data, subject.workspace.data(),
                                  subject.bench.stream) == CUBLAS_STATUS_SUCCESS;
         }});
  }
}

/// cuBLAS's own choice, as PyTorch calls it for matrices of this layout.
void add_control(const Subject& subject, cublasHandle_t handle, bool transposed,
                 std::vector<Variant>& variants) {
  cudaDataType_t data = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  switch (subject.spec.type) {
    case ProductType::fp64: data = CUDA_R_64F, compute = CUBLAS_COMPUTE_64F; break;
    case ProductType::fp32: break;
    case ProductType::tf32: compute = CUBLAS_COMPUTE_32F_FAST_TF32; break;
    case ProductType::fp16: data = CUDA_R_16F; break;
    case ProductType::bf16: data = CUDA_R_16BF; break;
    default: return;
  }
  const auto n = static_cast<int>(subject.spec.n);
  variants.push_back({fmt::format("{} cublasGemmEx", transposed ? "TN" : "NN"),
                      flop_of(subject.spec), [&subject, handle, transposed, data, compute, n] {
                        const double one64 = 1, zero64 = 0;
                        const float one32 = 1, zero32 = 0;
                        const bool wide = data == CUDA_R_64F;
                        const void* const one = wide ? static_cast<const void*>(&one64) : &one32;
                        const void* const zero = wide ? static_cast<const void*>(&zero64) : &zero32;
                        return cublasGemmEx(handle, transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                            CUBLAS_OP_N, n, n, n, one, subject.product->b().data,
                                            data, n, subject.product->a().data, data, n, zero,
                                            subject.product->c().data, data, n, compute,
                                            CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
                      }});
}

std::vector<MatmulChoices> choices(ProductType type) {
  std::vector<MatmulChoices> all;
  const MatmulChoices own = node::gpu::choices_of(type);
  for (const bool transposed : {true, false})
    for (const std::uint32_t reductions :
         {own.reductions, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}}) {
      all.push_back({transposed, own.compute, reductions});
      if (type == ProductType::fp32 && reductions == own.reductions)
        all.push_back({transposed, CUBLAS_COMPUTE_32F_PEDANTIC, reductions});
    }
  return all;
}

/// The product as it is measured, on other data: fills once per group, so data are compared by
/// groups of one variant each.
void compare_data(const Subject& subject, const std::string& type) {
  const Variant product{"", flop_of(subject.spec), [&subject] {
                          subject.product->run(subject.bench.stream);
                          return true;
                        }};
  const cudaStream_t stream = shakedown::gpu::native(subject.bench.stream);
  const View operands[] = {subject.product->a(), subject.product->b()};
  const auto run = [&](const char* name) {
    Variant named = product;
    named.name = name;
    compare(subject.bench, type + " data", 1e12, {named});
  };
  run("ours: every bit of the significand random, deviation 1.15");
  if (subject.spec.type == ProductType::fp64) {
    for (const View& x : operands) round_to_fp32(x, stream);
    run("ours rounded to fp32: 29 zero bits");
  }
  for (int i = 0; i < 2; ++i) fill_normal(operands[i], Normal::of_fp32, 7 + i, stream);
  run("randn of fp32, as torch_compute.py");
  if (subject.spec.type == ProductType::fp64) {
    for (int i = 0; i < 2; ++i) fill_normal(operands[i], Normal::of_double, 7 + i, stream);
    run("randn of double");
  }
}

}  // namespace

void products(const Bench& bench, int size) {
  cublasHandle_t handle = nullptr;
  ENSURE(cublasCreate(&handle) == CUBLAS_STATUS_SUCCESS, "a handle of cuBLAS");
  cublasSetStream(handle, shakedown::gpu::native(bench.stream));
  const Buffer workspace(bench.device, Matmul::kWorkspaceBytes);
  cublasSetWorkspace(handle, workspace.data(), workspace.bytes());
  for (const ProductType type : product_types(bench.device)) {
    const std::string name = node::name_of(type);
    const Subject subject(bench, type, size);
    subject.product->fill(Operands::full_entropy, 21, bench.stream);
    std::vector<Variant> variants{
        {"as compute_perf: " + subject.product->algorithm(), flop_of(subject.spec), [&] {
           subject.product->run(bench.stream);
           return true;
         }}};
    for (const bool transposed : {false, true}) add_control(subject, handle, transposed, variants);
    for (const MatmulChoices& one : choices(type)) add_algorithms(subject, one, variants);
    compare(bench, name, 1e12, variants);
    if (type == ProductType::fp64 || type == ProductType::fp32 || type == ProductType::fp8)
      compare_data(subject, name);
  }
  cublasDestroy(handle);
}

}  // namespace shakedown::experiments
