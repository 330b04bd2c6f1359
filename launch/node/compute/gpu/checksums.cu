#include "launch/node/compute/checksums.hpp"

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/gpu/elements.cuh"

namespace shakedown::node::gpu {
namespace {

using checksums::OperandSource;
using checksums::with_source;
using Word = unsigned long long;

constexpr int kWarp = 32;
constexpr std::int64_t kRowsPerThread = 128;

Word* words(View view) { return static_cast<Word*>(view.data); }

/// A thread per column and kRowsPerThread rows; sums start at zero.
template <class Source>
__global__ void sum_columns_kernel(Source source, MatrixShape shape, Word* sums) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= shape.columns) return;
  const std::int64_t first = blockIdx.y * kRowsPerThread;
  const std::int64_t end = min(first + kRowsPerThread, shape.rows);
  Word sum = 0;
  for (std::int64_t row = first; row < end; ++row)
    sum += static_cast<Word>(source(static_cast<std::uint64_t>(row * shape.columns + column)));
  atomicAdd(&sums[column], sum);
}

/// A block per row.
template <class Source>
__global__ void sum_rows_kernel(Source source, MatrixShape shape, const Word* weights, Word* sums) {
  __shared__ Word of_warp[kThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  Word sum = 0;
  for (std::int64_t column = threadIdx.x; column < shape.columns; column += kThreads)
    sum += static_cast<Word>(source(static_cast<std::uint64_t>(row * shape.columns + column))) *
           (weights != nullptr ? weights[column] : 1);
  for (int lane = kWarp / 2; lane > 0; lane /= 2) sum += __shfl_down_sync(~0U, sum, lane);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) sum += of_warp[warp];
  sums[row] = sum;
}

template <class Source>
void sum_columns(const Source& source, MatrixShape shape, View sums, Stream& stream) {
  const cudaStream_t cuda_stream = shakedown::gpu::native(stream);
  CHECK_CUDA(cudaMemsetAsync(sums.data, 0, sums.bytes(), cuda_stream));
  const dim3 blocks(static_cast<unsigned>((shape.columns + kThreads - 1) / kThreads),
                    static_cast<unsigned>((shape.rows + kRowsPerThread - 1) / kRowsPerThread));
  sum_columns_kernel<<<blocks, kThreads, 0, cuda_stream>>>(source, shape, words(sums));
  CHECK_LAUNCH();
}

template <class Source>
void sum_rows(const Source& source, MatrixShape shape, const void* weights, View sums,
              Stream& stream) {
  sum_rows_kernel<<<static_cast<unsigned>(shape.rows), kThreads, 0,
                    shakedown::gpu::native(stream)>>>(
      source, shape, static_cast<const Word*>(weights), words(sums));
  CHECK_LAUNCH();
}

class CudaChecksums final : public Checksums {
 public:
  void columns_of(const OperandRule& rule, MatrixShape shape, View sums,
                  Stream& stream) const override {
    sum_columns(OperandSource{rule}, shape, sums, stream);
  }
  void columns_of(ConstView c, MatrixShape shape, View sums, Stream& stream) const override {
    with_source(c, [&](const auto& source) { sum_columns(source, shape, sums, stream); });
  }
  void rows_of(const OperandRule& rule, MatrixShape shape, ConstView weights, View sums,
               Stream& stream) const override {
    sum_rows(OperandSource{rule}, shape, weights.data, sums, stream);
  }
  void rows_of(ConstView c, MatrixShape shape, View sums, Stream& stream) const override {
    with_source(c, [&](const auto& source) { sum_rows(source, shape, nullptr, sums, stream); });
  }
};

}  // namespace

std::unique_ptr<Checksums> make_checksums() { return std::make_unique<CudaChecksums>(); }

}  // namespace shakedown::node::gpu
