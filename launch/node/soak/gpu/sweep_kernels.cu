#include "launch/node/soak/sweep_kernels.hpp"

#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/soak/gpu/processors.cuh"

namespace shakedown::node::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kThreadsOfOne = 1024;  // where one SM does it all
constexpr int kInFlight = 4;         // groups of 16 bytes that a thread loads at once

using Group = ulonglong2;  // two words, one access

/// What is swept, and how: all that a kernel knows.
struct Task {
  Group* groups;
  std::uint64_t count;        // groups
  std::uint64_t first_group;  // the number of the first one in the tested memory
  WordRule check, write;
  bool descending;
  std::uint32_t id;
};

__device__ __noinline__ void report(const Task& task, std::uint64_t index, std::uint64_t expected,
                                    std::uint64_t found, const unsigned long long* word,
                                    MemoryErrors* result) {
  const unsigned long long slot = atomicAdd(&result->count, 1ULL);
  if (slot >= MemoryErrors::kListed) return;
  result->list[slot] = {index, expected, found, __ldcv(word), task.id, this_processor()};
}

/// `thread` of `threads` that sweep together.
template <WordKind kind, bool checks, bool writes>
__device__ void sweep_groups(const Task& task, std::uint64_t thread, std::uint64_t threads,
                             MemoryErrors* result) {
  for (std::uint64_t base = thread; base < task.count; base += kInFlight * threads) {
    Group loaded[kInFlight];
    if constexpr (checks) {
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const std::uint64_t i = base + j * threads;
        if (i < task.count)
          loaded[j] = __ldcs(task.groups + (task.descending ? task.count - 1 - i : i));
      }
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const std::uint64_t i = base + j * threads;
      if (i >= task.count) break;
      const std::uint64_t group = task.descending ? task.count - 1 - i : i;
      const std::uint64_t index = 2 * (task.first_group + group);
      auto* const words = reinterpret_cast<unsigned long long*>(task.groups + group);
      if constexpr (checks) {
        const std::uint64_t even = word_of(kind, task.check, index);
        const std::uint64_t odd = word_of(kind, task.check, index + 1);
        if (loaded[j].x != even) report(task, index, even, loaded[j].x, words, result);
        if (loaded[j].y != odd) report(task, index + 1, odd, loaded[j].y, words + 1, result);
      }
      if constexpr (writes)
        __stcs(task.groups + group,
               Group{word_of(kind, task.write, index), word_of(kind, task.write, index + 1)});
    }
  }
}

template <WordKind kind, bool checks, bool writes>
__global__ void __launch_bounds__(kThreads) sweep_kernel(Task task, MemoryErrors* result) {
  sweep_groups<kind, checks, writes>(
      task, static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
      static_cast<std::uint64_t>(gridDim.x) * blockDim.x, result);
}

/// The same by the first block that gets to the SM.
template <WordKind kind, bool checks, bool writes>
__global__ void __launch_bounds__(kThreadsOfOne)
    sweep_by_one_kernel(Task task, int processor, unsigned* claim, MemoryErrors* result) {
  if (this_processor() != processor) return hold_processor(claim, 1);
  if (!claimed(claim)) return;
  sweep_groups<kind, checks, writes>(task, threadIdx.x, blockDim.x, result);
  if (threadIdx.x == 0) atomicAdd(&result->swept_by_one, 1ULL);
}

template <WordKind kind>
struct Kind {
  static constexpr WordKind value = kind;
};

/// Calls body with the kind, and with whether words are checked and written, as constants.
template <class Body>
void with_constants(const Sweep& sweep, Body&& body) {
  const auto with_kind = [&](auto kind) {
    if (!sweep.check) return body(kind, std::false_type(), std::true_type());
    if (!sweep.write) return body(kind, std::true_type(), std::false_type());
    return body(kind, std::true_type(), std::true_type());
  };
  switch (kind_of(sweep)) {
    case WordKind::address: return with_kind(Kind<WordKind::address>());
    case WordKind::random: return with_kind(Kind<WordKind::random>());
    case WordKind::constant: return with_kind(Kind<WordKind::constant>());
    case WordKind::walking: return with_kind(Kind<WordKind::walking>());
  }
}

class CudaSweepKernels final : public SweepKernels {
 public:
  explicit CudaSweepKernels(Device& device)
      : device_(device), processors_(gpu::processors(device)), claim_(device, sizeof(unsigned)) {}

  void sweep(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found,
             Stream& stream) const override {
    ENSURE(block.words.count % 2 == 0 && block.first % 2 == 0, "a block has whole groups");
    if (block.words.count == 0) return;
    const Task task{static_cast<Group*>(block.words.data),
                    block.words.count / 2,
                    block.first / 2,
                    sweep.check.value_or(WordRule{}),
                    sweep.write.value_or(WordRule{}),
                    sweep.descending,
                    sweep.id};
    with_constants(sweep, [&](auto kind, auto checks, auto writes) {
      constexpr WordKind k = decltype(kind)::value;
      constexpr bool c = decltype(checks)::value;
      constexpr bool w = decltype(writes)::value;
      const cudaStream_t native = shakedown::gpu::native(stream);
      if (sweep.processor == kAnyProcessor) {
        sweep_kernel<k, c, w><<<blocks_for(task.count), kThreads, 0, native>>>(task, found);
      } else {
        auto* const claim = static_cast<unsigned*>(claim_.data());
        device_.zero(claim, sizeof(unsigned), stream);
        launch_one_per_processor(sweep_by_one_kernel<k, c, w>, processors_.size(), kThreadsOfOne,
                                 native, task, sweep.processor, claim, found);
      }
    });
    CHECK_LAUNCH();
  }

  std::vector<int> processors() const override { return processors_; }

 private:
  unsigned blocks_for(std::uint64_t groups) const {
    return static_cast<unsigned>(
        std::clamp<std::uint64_t>((groups + kThreads - 1) / kThreads, 1, 8 * processors_.size()));
  }

  Device& device_;
  std::vector<int> processors_;
  Buffer claim_;  // of the sweep by one processor in progress
};

}  // namespace

std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device) {
  return std::make_unique<CudaSweepKernels>(device);
}

}  // namespace shakedown::node::gpu
