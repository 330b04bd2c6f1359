// Operands made and compared, sums of matrices, and streams of words.
#include "launch/node/compute/kernels.hpp"

#include <algorithm>
#include <cstddef>

#include "common/ensure.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::node::gpu {

namespace {

using checksums::with_source;
using Word = unsigned long long;
using Pair = ulonglong2;  // 16 bytes: the widest access

constexpr int kThreads = 256;
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

/// A block per row.
template <class Bits>
__global__ void fill_operand_kernel(Bits* x, std::int64_t columns, OperandRule rule,
                                    const __grid_constant__ LineOrder order) {
  const std::int64_t first = std::int64_t{blockIdx.x} * columns;
  const std::int64_t original = order.original(blockIdx.x) * columns;
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x)
    x[first + column] =
        static_cast<Bits>(operand_word(rule, static_cast<std::uint64_t>(original + column)));
}

template <class Bits>
__global__ void compare_operand_kernel(const Bits* x, std::int64_t columns, OperandRule rule,
                                       const __grid_constant__ LineOrder order, WordErrors* wrong) {
  const std::int64_t first = std::int64_t{blockIdx.x} * columns;
  const std::int64_t original = order.original(blockIdx.x) * columns;
  for (std::int64_t column = threadIdx.x; column < columns; column += blockDim.x) {
    const Bits found = __ldcs(x + first + column);
    if (found ==
        static_cast<Bits>(operand_word(rule, static_cast<std::uint64_t>(original + column))))
      continue;
    atomicAdd(&wrong->count, 1ULL);
    atomicMin(&wrong->first, static_cast<Word>(first + column));
  }
}

/// Calls launch with the operand's words, and its rows: blocks.
template <class Launch>
void with_bits(View x, std::int64_t columns, Launch&& launch) {
  const auto rows = static_cast<unsigned>(static_cast<std::int64_t>(x.count) / columns);
  switch (size_of(x.type)) {
    case 1: launch(static_cast<std::uint8_t*>(x.data), rows); break;
    case 2: launch(static_cast<std::uint16_t*>(x.data), rows); break;
    case 4: launch(static_cast<std::uint32_t*>(x.data), rows); break;
    default: launch(static_cast<Word*>(x.data), rows);
  }
  CHECK_LAUNCH();
}

constexpr int kInFlight = 8;  // loads of a thread that only reads
constexpr std::size_t kChunk = static_cast<std::size_t>(kThreads) * kInFlight;  // pairs of a block
static_assert(kChunk * sizeof(Pair) == ComputeKernels::kChunkBytes);

/// Pair i of a ramp.
__device__ Pair pair_of(const Ramp& ramp, std::size_t i) {
  const Word word = ramp.first + 2 * i * ramp.step;
  return {word, word + ramp.step};
}

/// This thread's pair of a grid with a thread per pair: as fast as cudaMemcpyAsync and
/// cudaMemsetAsync on H200; several per thread, or hints to the caches, are up to 5 % slower.
__device__ std::size_t own_pair() { return std::size_t{blockIdx.x} * kThreads + threadIdx.x; }

__global__ void write_kernel(Pair* x, Ramp ramp) { x[own_pair()] = pair_of(ramp, own_pair()); }

__global__ void copy_kernel(const Pair* from, Pair* to) { to[own_pair()] = from[own_pair()]; }

__global__ void triad_kernel(const Pair* x, const Pair* y, Pair* to) {
  const Pair first = x[own_pair()];
  const Pair second = y[own_pair()];
  to[own_pair()] = {first.x + kTriadFactor * second.x, first.y + kTriadFactor * second.y};
}

/// Few blocks of many chunks each, for the additions to *sum are all to one address.
__global__ void read_kernel(const Pair* x, std::size_t chunks, Word* sum) {
  Word all = 0;
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    Pair held[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j)
      held[j] = __ldcs(&x[chunk * kChunk + j * kThreads + threadIdx.x]);
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) all += held[j].x + held[j].y;
  }
  for (int lane = 16; lane > 0; lane /= 2) all += __shfl_down_sync(~0U, all, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, all);
}

__global__ void check_words_kernel(const Pair* x, Ramp ramp, WordErrors* wrong) {
  const std::size_t i = own_pair();
  const Pair found = x[i];
  const Pair expected = pair_of(ramp, i);
  if (found.x == expected.x && found.y == expected.y) return;
  atomicAdd(&wrong->count, (found.x != expected.x ? 1ULL : 0ULL) + (found.y != expected.y ? 1 : 0));
  atomicMin(&wrong->first, 2 * i + (found.x == expected.x ? 1 : 0));
}

Pair* pairs(View x) { return static_cast<Pair*>(x.data); }
const Pair* pairs(ConstView x) { return static_cast<const Pair*>(x.data); }

unsigned chunks_of(ConstView x) {
  ENSURE(x.bytes() % ComputeKernels::kChunkBytes == 0, "whole chunks");
  return static_cast<unsigned>(x.bytes() / ComputeKernels::kChunkBytes);
}
/// A thread per pair.
unsigned blocks_of(ConstView x) { return chunks_of(x) * kInFlight; }

class CudaKernels final : public ComputeKernels {
 public:
  CudaKernels() {
    int device = 0;
    CHECK_CUDA(cudaGetDevice(&device));
    CHECK_CUDA(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device));
  }

  void fill_operand(View x, std::int64_t columns, const OperandRule& rule, const LineOrder& order,
                    Stream& stream) const override {
    with_bits(x, columns, [&](auto* bits, unsigned rows) {
      fill_operand_kernel<<<rows, kThreads, 0, shakedown::gpu::native(stream)>>>(bits, columns,
                                                                                 rule, order);
    });
  }
  void compare_operand(View x, std::int64_t columns, const OperandRule& rule,
                       const LineOrder& order, WordErrors* wrong, Stream& stream) const override {
    with_bits(x, columns, [&](const auto* bits, unsigned rows) {
      compare_operand_kernel<<<rows, kThreads, 0, shakedown::gpu::native(stream)>>>(
          bits, columns, rule, order, wrong);
    });
  }
  void columns_of(const SummedMatrix& matrix, MatrixShape shape, View sums,
                  Stream& stream) const override {
    with_source(matrix, [&](const auto& source) { sum_columns(source, shape, sums, stream); });
  }
  void rows_of(const SummedMatrix& matrix, MatrixShape shape, ConstView weights, View sums,
               Stream& stream) const override {
    with_source(matrix,
                [&](const auto& source) { sum_rows(source, shape, weights.data, sums, stream); });
  }

  void write(View x, const Ramp& ramp, Stream& stream) const override {
    write_kernel<<<blocks_of(x), kThreads, 0, shakedown::gpu::native(stream)>>>(pairs(x), ramp);
    CHECK_LAUNCH();
  }
  void read(ConstView x, std::uint64_t* sum, Stream& stream) const override {
    constexpr unsigned kResident = 2048 / kThreads;  // blocks that a multiprocessor holds
    const unsigned blocks = std::min(chunks_of(x), kResident * static_cast<unsigned>(processors_));
    read_kernel<<<blocks, kThreads, 0, shakedown::gpu::native(stream)>>>(
        pairs(x), chunks_of(x), reinterpret_cast<Word*>(sum));
    CHECK_LAUNCH();
  }
  void copy(ConstView from, View to, Stream& stream) const override {
    copy_kernel<<<blocks_of(to), kThreads, 0, shakedown::gpu::native(stream)>>>(pairs(from),
                                                                                pairs(to));
    CHECK_LAUNCH();
  }
  void triad(ConstView x, ConstView y, View to, Stream& stream) const override {
    triad_kernel<<<blocks_of(to), kThreads, 0, shakedown::gpu::native(stream)>>>(pairs(x), pairs(y),
                                                                                 pairs(to));
    CHECK_LAUNCH();
  }
  void check(ConstView x, const Ramp& ramp, WordErrors* wrong, Stream& stream) const override {
    check_words_kernel<<<blocks_of(x), kThreads, 0, shakedown::gpu::native(stream)>>>(pairs(x),
                                                                                      ramp, wrong);
    CHECK_LAUNCH();
  }

 private:
  int processors_ = 1;
};

}  // namespace

std::unique_ptr<ComputeKernels> make_compute_kernels() { return std::make_unique<CudaKernels>(); }

}  // namespace shakedown::node::gpu
