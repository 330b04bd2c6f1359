#include "launch/node/soak/known_words.hpp"

#include <algorithm>

#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(std::size_t count) {
  return static_cast<unsigned>(std::clamp<std::size_t>((count + kThreads - 1) / kThreads, 1, 4096));
}

__device__ std::size_t first_word() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::size_t grid_threads() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

__global__ void fill_words_kernel(std::uint64_t* to, std::size_t count, KnownWords words) {
  for (std::size_t i = first_word(); i < count; i += grid_threads()) to[i] = words.word(i);
}

__global__ void check_words_kernel(const std::uint64_t* found, std::size_t count, KnownWords words,
                                   std::uint64_t index, WordErrors* wrong) {
  for (std::size_t i = first_word(); i < count; i += grid_threads()) {
    if (found[i] == words.word(i)) continue;
    atomicAdd(&wrong->count, 1ULL);
    atomicMin(&wrong->first, static_cast<unsigned long long>(index + i));
  }
}

class CudaWordKernels final : public WordKernels {
 public:
  void fill(View to, const KnownWords& words, Stream& stream) const override {
    if (to.count == 0) return;
    fill_words_kernel<<<blocks_for(to.count), kThreads, 0, shakedown::gpu::native(stream)>>>(
        static_cast<std::uint64_t*>(to.data), to.count, words);
    CHECK_LAUNCH();
  }

  void check(ConstView found, const KnownWords& words, std::uint64_t index, WordErrors* wrong,
             Stream& stream) const override {
    if (found.count == 0) return;
    check_words_kernel<<<blocks_for(found.count), kThreads, 0, shakedown::gpu::native(stream)>>>(
        static_cast<const std::uint64_t*>(found.data), found.count, words, index, wrong);
    CHECK_LAUNCH();
  }
};

}  // namespace

std::unique_ptr<WordKernels> make_word_kernels() { return std::make_unique<CudaWordKernels>(); }

}  // namespace shakedown::node::gpu
