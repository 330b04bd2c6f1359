// Kernels that stream through memory, each in several ways; and operands as PyTorch makes them.
#include <cstdint>

#include "common/error.hpp"
#include "common/gpu/native.hpp"
#include "common/numbers.hpp"
#include "tests/experiments/gpu/experiment.hpp"

namespace shakedown::experiments {
namespace {

using Word = unsigned long long;
using Pair = ulonglong2;

enum class Cache { plain, streaming, last_use };  // ld/st, .cs, .lu or .wt

template <Cache cache>
__device__ Pair load(const Pair* at) {
  if constexpr (cache == Cache::streaming) return __ldcs(at);
  if constexpr (cache == Cache::last_use) return __ldlu(at);
  return *at;
}
template <Cache cache>
__device__ void store(Pair* at, Pair value) {
  if constexpr (cache == Cache::streaming)
    __stcs(at, value);
  else if constexpr (cache == Cache::last_use)
    __stwt(at, value);
  else
    *at = value;
}

/// How a kernel goes through memory: a block has `threads`, each with `in_flight` accesses of 16
/// bytes under way; `wide`: two adjacent ones per thread.
template <int threads_, int in_flight_, bool wide_, Cache loads_, Cache stores_>
struct Way {
  static constexpr int threads = threads_;
  static constexpr int in_flight = in_flight_;
  static constexpr bool wide = wide_;
  static constexpr Cache loads = loads_;
  static constexpr Cache stores = stores_;
};

template <class Way, class Body>
__device__ void for_each(std::size_t chunk, Body&& body) {
#pragma unroll
  for (int j = 0; j < Way::in_flight; ++j) {
    const std::size_t begin = chunk * Way::threads * Way::in_flight;
    if constexpr (Way::wide)
      body(j, begin + (j / 2 * Way::threads + threadIdx.x) * 2 + j % 2);
    else
      body(j, begin + j * Way::threads + threadIdx.x);
  }
}

template <class Way>
__global__ void __launch_bounds__(Way::threads)
    copy_kernel(const Pair* from, Pair* to, std::size_t chunks) {
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    Pair held[Way::in_flight];
    for_each<Way>(chunk, [&](int j, std::size_t i) { held[j] = load<Way::loads>(&from[i]); });
    for_each<Way>(chunk, [&](int j, std::size_t i) { store<Way::stores>(&to[i], held[j]); });
  }
}

template <class Way>
__global__ void __launch_bounds__(Way::threads) write_kernel(Pair* to, std::size_t chunks) {
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x)
    for_each<Way>(chunk, [&](int, std::size_t i) {
      const Word word = 2 * i * 0x9E3779B97F4A7C15U;
      store<Way::stores>(&to[i], {word, word + 0x9E3779B97F4A7C15U});
    });
}

template <class Way>
__global__ void __launch_bounds__(Way::threads)
    read_kernel(const Pair* from, Word* sum, std::size_t chunks) {
  Word all = 0;
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    Pair held[Way::in_flight];
    for_each<Way>(chunk, [&](int j, std::size_t i) { held[j] = load<Way::loads>(&from[i]); });
    for_each<Way>(chunk, [&](int j, std::size_t) { all += held[j].x + held[j].y; });
  }
  for (int lane = 16; lane > 0; lane /= 2) all += __shfl_down_sync(~0U, all, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, all);
}

template <class Way>
__global__ void __launch_bounds__(Way::threads)
    triad_kernel(const Pair* x, const Pair* y, Pair* to, std::size_t chunks) {
  for (std::size_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    Pair first[Way::in_flight];
    Pair second[Way::in_flight];
    for_each<Way>(chunk, [&](int j, std::size_t i) {
      first[j] = load<Way::loads>(&x[i]);
      second[j] = load<Way::loads>(&y[i]);
    });
    for_each<Way>(chunk, [&](int j, std::size_t i) {
      store<Way::stores>(&to[i], {first[j].x + 3 * second[j].x, first[j].y + 3 * second[j].y});
    });
  }
}

/// Through shared memory by the bulk copy engine of Hopper: a ring of buffers per block.
constexpr int kBulkStages = 4;
constexpr unsigned kBulkBytes = 16384;

__device__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

__global__ void __launch_bounds__(32)
    bulk_copy_kernel(const char* from, char* to, std::size_t chunks) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char buffers[];
  __shared__ __align__(8) std::uint64_t full[kBulkStages];
  if (threadIdx.x != 0) return;
  for (auto& barrier : full)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  const auto fetch = [&](std::size_t number, std::size_t chunk) {
    const unsigned stage = number % kBulkStages;
    const unsigned barrier = shared_address(&full[stage]);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                 "r"(kBulkBytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(buffers + stage * kBulkBytes)),
        "l"(from + chunk * kBulkBytes), "r"(kBulkBytes), "r"(barrier)
        : "memory");
  };
  constexpr int kAhead = kBulkStages - 2;  // one buffer is written from, one may still be
  const std::size_t count = blockIdx.x < chunks ? (chunks - blockIdx.x - 1) / gridDim.x + 1 : 0;
  const auto chunk_of = [&](std::size_t number) { return blockIdx.x + number * gridDim.x; };
  for (std::size_t number = 0; number < kAhead && number < count; ++number)
    fetch(number, chunk_of(number));
  for (std::size_t number = 0; number < count; ++number) {
    if (number + kAhead < count) {
      // At most one write may still be under way: that of this stage's last content is done.
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      fetch(number + kAhead, chunk_of(number + kAhead));
    }
    const unsigned stage = number % kBulkStages;
    const unsigned parity = number / kBulkStages % 2;
    asm volatile(
        "{\n.reg .pred done;\nwait_%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(
            shared_address(&full[stage])),
        "r"(parity)
        : "memory");
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     to + chunk_of(number) * kBulkBytes),
                 "r"(shared_address(buffers + stage * kBulkBytes)), "r"(kBulkBytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

const char* text_of(Cache cache, bool loads) {
  switch (cache) {
    case Cache::plain: return "plain";
    case Cache::streaming: return ".cs";
    case Cache::last_use: return loads ? ".lu" : ".wt";
  }
  return "";
}

template <class Way>
std::string text_of(int per_processor) {
  return std::to_string(Way::threads) + " threads, " + std::to_string(Way::in_flight) +
         " in flight, " + (Way::wide ? "32" : "16") + " bytes, loads " + text_of(Way::loads, true) +
         ", stores " + text_of(Way::stores, false) + ", " +
         (per_processor == 0 ? std::string("one-shot")
                             : std::to_string(per_processor) + " blocks per SM");
}

struct Place {
  cudaStream_t stream;
  int processors;
};

template <class Way>
std::size_t chunks_of(ConstView x) {
  const std::size_t chunk = sizeof(Pair) * Way::threads * Way::in_flight;
  ENSURE(x.bytes() % chunk == 0, "whole chunks");
  return x.bytes() / chunk;
}

/// Calls launch<Way>(blocks, chunks) for one-shot and persistent grids.
template <class Way, class Launch>
void add(std::vector<Variant>& variants, ConstView x, const Place& place, double work,
         std::initializer_list<int> grids, Launch launch) {
  const std::size_t chunks = chunks_of<Way>(x);
  for (const int per_processor : grids) {
    const auto blocks = static_cast<unsigned>(
        per_processor == 0 ? chunks : std::size_t(per_processor) * place.processors);
    variants.push_back({text_of<Way>(per_processor), work, [=] {
                          launch(blocks, chunks);
                          CHECK_LAUNCH();
                          return true;
                        }});
  }
}

template <class Way>
void add_copy(std::vector<Variant>& variants, View from, View to, const Place& place,
              std::initializer_list<int> grids) {
  add<Way>(variants, to, place, 2. * to.bytes(), grids, [=](unsigned blocks, std::size_t chunks) {
    copy_kernel<Way><<<blocks, Way::threads, 0, place.stream>>>(
        static_cast<const Pair*>(from.data), static_cast<Pair*>(to.data), chunks);
  });
}
template <class Way>
void add_read(std::vector<Variant>& variants, View from, Word* sum, const Place& place,
              std::initializer_list<int> grids) {
  add<Way>(variants, from, place, from.bytes(), grids, [=](unsigned blocks, std::size_t chunks) {
    read_kernel<Way><<<blocks, Way::threads, 0, place.stream>>>(static_cast<const Pair*>(from.data),
                                                                sum, chunks);
  });
}
template <class Way>
void add_write(std::vector<Variant>& variants, View to, const Place& place,
               std::initializer_list<int> grids) {
  add<Way>(variants, to, place, to.bytes(), grids, [=](unsigned blocks, std::size_t chunks) {
    write_kernel<Way>
        <<<blocks, Way::threads, 0, place.stream>>>(static_cast<Pair*>(to.data), chunks);
  });
}
template <class Way>
void add_triad(std::vector<Variant>& variants, View x, View y, View to, const Place& place,
               std::initializer_list<int> grids) {
  add<Way>(variants, to, place, 3. * to.bytes(), grids, [=](unsigned blocks, std::size_t chunks) {
    triad_kernel<Way><<<blocks, Way::threads, 0, place.stream>>>(
        static_cast<const Pair*>(x.data), static_cast<const Pair*>(y.data),
        static_cast<Pair*>(to.data), chunks);
  });
}

constexpr Cache kPlain = Cache::plain;
constexpr Cache kCs = Cache::streaming;
constexpr Cache kLast = Cache::last_use;

__device__ Word mixed(Word x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

template <class Bits>
__global__ void normal_kernel(Bits* x, std::size_t count, Normal kind, Word seed,
                              number_format::Format format) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x) {
    const Word h = mixed(seed * 0x9E3779B97F4A7C15U + i + 1);
    const double u = (static_cast<double>(h >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(mixed(h) >> 11) * 0x1p-53;
    double value = sqrt(-2 * log(u)) * cospi(2 * v);
    if (kind == Normal::of_fp32) value = static_cast<float>(value);
    x[i] = static_cast<Bits>(
        format.exponent > 0
            ? number_format::encode(format, value)
            : number_format::low_bits(static_cast<Word>(static_cast<long long>(30 * value)),
                                      format.width));
  }
}

__global__ void round_kernel(double* x, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < count;
       i += std::size_t(gridDim.x) * blockDim.x)
    x[i] = static_cast<float>(x[i]);
}

}  // namespace

void fill_normal(View x, Normal kind, unsigned long long seed, cudaStream_t stream) {
  const auto launch = [&]<class Bits>(Bits) {
    normal_kernel<<<1024, 256, 0, stream>>>(static_cast<Bits*>(x.data), x.count, kind, seed,
                                            number_format::format_of(x.type));
  };
  switch (size_of(x.type)) {
    case 1: launch(std::uint8_t{}); break;
    case 2: launch(std::uint16_t{}); break;
    case 4: launch(std::uint32_t{}); break;
    default: launch(std::uint64_t{});
  }
  CHECK_LAUNCH();
}

void round_to_fp32(View x, cudaStream_t stream) {
  round_kernel<<<1024, 256, 0, stream>>>(static_cast<double*>(x.data), x.count);
  CHECK_LAUNCH();
}

std::vector<Variant> copies(View from, View to, cudaStream_t stream, int processors) {
  const Place place{stream, processors};
  std::vector<Variant> all;
  add_copy<Way<256, 8, false, kCs, kCs>>(all, from, to, place, {0, 2, 4, 8});  // 0: ours
  add_copy<Way<256, 8, false, kPlain, kPlain>>(all, from, to, place, {0, 2, 4, 8});
  add_copy<Way<256, 8, false, kCs, kPlain>>(all, from, to, place, {0});
  add_copy<Way<256, 8, false, kLast, kPlain>>(all, from, to, place, {0});
  add_copy<Way<256, 8, false, kPlain, kLast>>(all, from, to, place, {0});
  add_copy<Way<256, 8, true, kPlain, kPlain>>(all, from, to, place, {0, 4});
  add_copy<Way<256, 4, false, kPlain, kPlain>>(all, from, to, place, {0, 4, 8});
  add_copy<Way<256, 4, true, kPlain, kPlain>>(all, from, to, place, {0, 8});
  add_copy<Way<256, 4, false, kCs, kCs>>(all, from, to, place, {0});
  add_copy<Way<256, 2, false, kPlain, kPlain>>(all, from, to, place, {0, 8});
  add_copy<Way<256, 1, false, kPlain, kPlain>>(all, from, to, place, {0, 8});
  add_copy<Way<512, 4, false, kPlain, kPlain>>(all, from, to, place, {0, 2, 4});
  add_copy<Way<1024, 1, false, kPlain, kPlain>>(all, from, to, place, {0, 2});
  add_copy<Way<1024, 4, false, kPlain, kPlain>>(all, from, to, place, {0, 1});
  add_copy<Way<128, 4, false, kPlain, kPlain>>(all, from, to, place, {0, 8, 16});
  return all;
}

std::vector<Variant> bulk_copies(View from, View to, cudaStream_t stream, int processors) {
  CHECK_CUDA(cudaFuncSetAttribute(bulk_copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kBulkStages * kBulkBytes));
  std::vector<Variant> all;
  for (const int per_processor : {1, 2, 3})
    all.push_back(
        {"bulk copies of 16 KiB through shared memory, " + std::to_string(per_processor) +
             " blocks per SM",
         2. * to.bytes(), [=] {
           bulk_copy_kernel<<<per_processor * processors, 32, kBulkStages * kBulkBytes, stream>>>(
               static_cast<const char*>(from.data), static_cast<char*>(to.data),
               to.bytes() / kBulkBytes);
           CHECK_LAUNCH();
           return true;
         }});
  return all;
}

std::vector<Variant> reads(View from, unsigned long long* sum, cudaStream_t stream,
                           int processors) {
  const Place place{stream, processors};
  std::vector<Variant> all;
  add_read<Way<256, 8, false, kCs, kCs>>(all, from, sum, place, {8, 2, 4});  // 8: ours
  add_read<Way<256, 8, false, kPlain, kPlain>>(all, from, sum, place, {2, 4, 8});
  add_read<Way<256, 8, true, kPlain, kPlain>>(all, from, sum, place, {4});
  add_read<Way<256, 4, false, kPlain, kPlain>>(all, from, sum, place, {4, 8});
  add_read<Way<512, 4, false, kPlain, kPlain>>(all, from, sum, place, {2, 4});
  return all;
}

std::vector<Variant> writes(View to, cudaStream_t stream, int processors) {
  const Place place{stream, processors};
  std::vector<Variant> all;
  add_write<Way<256, 8, false, kCs, kCs>>(all, to, place, {0, 4});  // 0: ours
  add_write<Way<256, 8, false, kPlain, kPlain>>(all, to, place, {0, 2, 4, 8});
  add_write<Way<256, 4, false, kPlain, kPlain>>(all, to, place, {0, 4});
  add_write<Way<256, 1, false, kPlain, kPlain>>(all, to, place, {0});
  add_write<Way<1024, 1, false, kPlain, kPlain>>(all, to, place, {0, 2});
  return all;
}

std::vector<Variant> triads(View x, View y, View to, cudaStream_t stream, int processors) {
  const Place place{stream, processors};
  std::vector<Variant> all;
  add_triad<Way<256, 8, false, kCs, kCs>>(all, x, y, to, place, {0, 4});  // 0: ours
  add_triad<Way<256, 8, false, kPlain, kPlain>>(all, x, y, to, place, {0, 2, 4});
  add_triad<Way<256, 4, false, kPlain, kPlain>>(all, x, y, to, place, {0, 4, 8});
  add_triad<Way<256, 2, false, kPlain, kPlain>>(all, x, y, to, place, {0, 8});
  add_triad<Way<1024, 1, false, kPlain, kPlain>>(all, x, y, to, place, {0, 2});
  return all;
}

}  // namespace shakedown::experiments
