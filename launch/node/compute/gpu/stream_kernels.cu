#include "launch/node/compute/stream_kernels.hpp"

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/compute/gpu/elements.cuh"

namespace shakedown::node::gpu {
namespace {

using Word = unsigned long long;
using Pair = ulonglong2;  // 16 bytes: the widest access

constexpr int kInFlight = 8;  // loads of a thread that only reads
constexpr std::size_t kChunk = static_cast<std::size_t>(kThreads) * kInFlight;  // pairs of a block
static_assert(kChunk * sizeof(Pair) == StreamKernels::kChunkBytes);

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
  ENSURE(x.bytes() % StreamKernels::kChunkBytes == 0, "whole chunks");
  return static_cast<unsigned>(x.bytes() / StreamKernels::kChunkBytes);
}
/// A thread per pair.
unsigned blocks_of(ConstView x) { return chunks_of(x) * kInFlight; }

class CudaStreamKernels final : public StreamKernels {
 public:
  CudaStreamKernels() {
    int device = 0;
    CHECK_CUDA(cudaGetDevice(&device));
    CHECK_CUDA(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device));
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

std::unique_ptr<StreamKernels> make_stream_kernels() {
  return std::make_unique<CudaStreamKernels>();
}

}  // namespace shakedown::node::gpu
