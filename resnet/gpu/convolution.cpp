#include "resnet/gpu/convolution.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/ensure.hpp"
#include "common/usage_error.hpp"

namespace shakedown::gpu {

Convolution::Convolution(GpuContext& context, ConvKind kind, const NormedConv& layer)
    : context_(context),
      kind_(kind),
      conv_(layer.conv),
      work_{work_name(kind), layer.weight,
            context.bytes_of(conv_.x) + context.bytes_of(conv_.y()) +
                static_cast<double>(conv_.weight_count() * size_of(context.type)),
            conv_.flop()},
      choice_(context.tuner.choice(kind, conv_)) {
  if (!exists() && kind != ConvKind::forward_with_sums)
    throw UsageError(fmt::format(
        "cuDNN has no {} convolution in {} for {} x {} x {} x {}, {} filters {}x{}, stride {}: try "
        "another --precision, --batch-size or --image-size",
        name_of(kind), name_of(context.precision), conv_.x.n, conv_.x.c, conv_.x.h, conv_.x.w,
        conv_.k, conv_.kernel, conv_.kernel, conv_.stride));
}

std::size_t Convolution::workspace_bytes() const {
  std::size_t most = 0;
  for (const auto& plan : choice_.candidates) most = std::max(most, plan->workspace_bytes);
  return most;
}

void Convolution::bind(const ConvBuffers& buffers, void* workspace) {
  if (!choice_.chosen) {  // zeros would run faster than data do
    if (kind_ != ConvKind::backward_data)
      randomise(buffers.x, conv_.x.count(), context_.type, context_.cuda_stream);
    if (kind_ == ConvKind::backward_data || kind_ == ConvKind::backward_weights)
      randomise(buffers.y, conv_.y().count(), context_.type, context_.cuda_stream);
    context_.tuner.choose(choice_, buffers, workspace);
  }
  bound_.emplace(choice_.candidates.at(*choice_.chosen), buffers, workspace);
}

void Convolution::run() const {
  context_.log.run(work_, [&] { bound_->execute(context_.dnn.get); });
}

namespace {

constexpr int kMostAlgorithms = 16;  // the first may take 1.7 times the best (measured on H200)

/// The library's matrices are column by column: a row of ours is a column of its.
cublasLtMatrixLayoutOpaque_t layout_of(cudaDataType type, std::size_t rows, int columns,
                                       int parts) {
  cublasLtMatrixLayoutOpaque_t layout{};
  CHECK_CUBLAS(
      cublasLtMatrixLayoutInit(&layout, type, static_cast<std::uint64_t>(columns), rows, columns));
  const auto stride = static_cast<std::int64_t>(rows) * columns;
  CHECK_CUBLAS(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &parts,
                                                sizeof(parts)));
  CHECK_CUBLAS(cublasLtMatrixLayoutSetAttribute(
      &layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  return layout;
}

}  // namespace

PartedProduct::PartedProduct(const BlasHandle& handle, const Shape& s, std::size_t workspace_bytes)
    // by its documentation a handle of cuBLAS is one of cublasLt
    : handle_(reinterpret_cast<cublasLtHandle_t>(handle.get)), workspace_bytes_(workspace_bytes) {
  ENSURE(s.parts > 0 && s.rows % static_cast<std::size_t>(s.parts) == 0,
         "parts of a product: equal ones");
  const std::size_t rows = s.rows / static_cast<std::size_t>(s.parts);
  left_ = layout_of(blas_type(s.type), rows, s.left, s.parts);
  right_ = layout_of(blas_type(s.type), rows, s.right, s.parts);
  result_ = layout_of(CUDA_R_32F, static_cast<std::size_t>(s.left), s.right, s.parts);
  CHECK_CUBLAS(cublasLtMatmulDescInit(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(&product_, CUBLASLT_MATMUL_DESC_TRANSB, &transposed,
                                              sizeof(transposed)));

  cublasLtMatmulPreferenceOpaque_t preference{};
  CHECK_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
    CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, name, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  std::vector<cublasLtMatmulHeuristicResult_t> found(kMostAlgorithms);
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, &product_, &right_, &left_, &result_, &result_,
                                     &preference, kMostAlgorithms, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;
  CHECK_CUBLAS(status);
  for (int i = 0; i < count; ++i)
    if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms_.push_back(found[static_cast<std::size_t>(i)].algo);
}

void PartedProduct::run(std::size_t algorithm, const void* a, const void* b, float* c,
                        void* workspace, cudaStream_t stream) const {
  const float one = 1;
  const float zero = 0;
  CHECK_CUBLAS(cublasLtMatmul(handle_, &product_, &one, b, &right_, a, &left_, &zero, c, &result_,
                              c, &result_, &algorithms_.at(algorithm), workspace, workspace_bytes_,
                              stream));
}

}  // namespace shakedown::gpu
