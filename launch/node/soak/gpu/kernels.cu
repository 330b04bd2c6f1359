#include <algorithm>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/soak/gpu/sm_probe.cuh"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/tile_hash.hpp"

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

namespace {

/// The same by one thread of a block, while the others of it wait.
__global__ void __launch_bounds__(kThreadsOfOne)
    hold_processor_kernel(HoldWords* words, int processor) {
  if (threadIdx.x == 0) {
    auto* const resident = static_cast<volatile std::int32_t*>(&words->resident);
    auto* const stop = static_cast<volatile std::int32_t*>(&words->stop);
    if (this_processor() == processor) {
      atomicAdd_system(&words->resident, 1);
      while (*stop == 0) __nanosleep(20'000);
    } else {  // so that blocks yet to come get to it; 5 ms at most
      const unsigned long long begin = nanoseconds();
      while (*resident == 0 && nanoseconds() - begin < 5000000) __nanosleep(20'000);
    }
  }
  __syncthreads();
}

}  // namespace

void launch_hold_processor(HoldWords* words, int processor, Stream& stream) {
  int device = 0;
  int processors = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  launch_one_per_processor(hold_processor_kernel, static_cast<std::size_t>(processors),
                           kThreadsOfOne, shakedown::gpu::native(stream), words, processor);
}

namespace {

constexpr int kHashThreads = 256;

__global__ void make_keys_kernel(std::uint64_t seed, std::uint64_t* keys) {
  const std::uint64_t word = std::uint64_t{blockIdx.x} * kHashThreads + threadIdx.x;
  keys[word] = key_of_word(seed, word);
}

/// A block per tile of the launch, the last ones first: the second cache may still have them. A
/// thread has groups of 16 bytes of one column, some of them
/// under way, and their keys from the first cache, in which the table stays: 14 instructions per
/// group, and a load of shared memory.
template <int kElementBytes>
__global__ void __launch_bounds__(kHashThreads)
    hash_tiles_kernel(const std::byte* matrix, std::int64_t row_bytes, std::uint32_t product,
                      const __grid_constant__ LineOrder row_order,
                      const __grid_constant__ LineOrder column_order, const ulonglong2* keys,
                      TileRecord* records) {
  constexpr int kGroups = kTileEdge * kElementBytes / 16;  // per row of a tile
  constexpr int kColumns = 16 / kElementBytes;             // per group
  constexpr int kRows = kHashThreads / kGroups;            // that a block reads at a time
  constexpr int kUnderWay = 4;
  __shared__ const ulonglong2* keys_of_row[kTileEdge];
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < kTileEdge) keys_of_row[thread] = keys + row_order.line(thread) * kGroups;
  __syncthreads();
  const int group = thread % kGroups;
  const int key = column_order.line(group * kColumns) / kColumns;
  const std::int64_t down = gridDim.y - 1 - blockIdx.y;
  const std::int64_t across = gridDim.x - 1 - blockIdx.x;
  const std::int64_t row = down * kTileEdge + thread / kGroups;
  const std::byte* at = matrix + row * row_bytes + (across * kGroups + group) * 16;
  const ulonglong2* const* keys_at = keys_of_row + thread / kGroups;
  std::uint64_t hash = 0;
  for (int i = 0; i < kTileEdge / kRows / kUnderWay; ++i) {
    ulonglong2 words[kUnderWay];
    ulonglong2 of_words[kUnderWay];
#pragma unroll
    for (int j = 0; j < kUnderWay; ++j, at += kRows * row_bytes, keys_at += kRows) {
      words[j] = __ldcs(reinterpret_cast<const ulonglong2*>(at));
      of_words[j] = __ldg(*keys_at + key);
    }
#pragma unroll
    for (int j = 0; j < kUnderWay; ++j)
      hash += share_of_word(words[j].x, of_words[j].x) + share_of_word(words[j].y, of_words[j].y);
  }
  for (int distance = 16; distance > 0; distance /= 2)
    hash += __shfl_down_sync(0xFFFFFFFFU, hash, distance);
  __shared__ std::uint64_t sums[kHashThreads / 32];
  if (thread % 32 == 0) sums[thread / 32] = hash;
  __syncthreads();
  if (thread != 0) return;
  for (int warp = 1; warp < kHashThreads / 32; ++warp) hash += sums[warp];
  const std::int64_t tile = row_order.tile(down) * gridDim.x + column_order.tile(across);
  add_hash(records[tile], hash, product);
}

auto kernel_for(const TileGrid& grid) {
  switch (grid.element_bytes) {
    case 2: return hash_tiles_kernel<2>;
    case 4: return hash_tiles_kernel<4>;
    case 8: return hash_tiles_kernel<8>;
    default: throw InternalError("elements of a product have 2, 4 or 8 bytes");
  }
}

class CudaTileHasher final : public TileHasher {
 public:
  void make_keys(std::uint64_t seed, View keys, Stream& stream) const override {
    ENSURE(keys.count % kHashThreads == 0, "keys of a whole tile");
    make_keys_kernel<<<static_cast<unsigned>(keys.count / kHashThreads), kHashThreads, 0,
                       shakedown::gpu::native(stream)>>>(seed,
                                                         static_cast<std::uint64_t*>(keys.data));
    CHECK_LAUNCH();
  }
  void hash(ConstView matrix, const TileGrid& grid, const Turn& turn, ConstView keys,
            std::uint32_t product, TileRecord* records, Stream& stream) const override {
    const dim3 tiles(static_cast<unsigned>(grid.across()),
                     static_cast<unsigned>(grid.rows / kTileEdge));
    kernel_for(grid)<<<tiles, kHashThreads, 0, shakedown::gpu::native(stream)>>>(
        static_cast<const std::byte*>(matrix.data), grid.row_bytes(), product, turn.rows,
        turn.columns, static_cast<const ulonglong2*>(keys.data), records);
    CHECK_LAUNCH();
  }
};

}  // namespace

std::unique_ptr<TileHasher> make_tile_hasher() { return std::make_unique<CudaTileHasher>(); }

}  // namespace shakedown::node::gpu
