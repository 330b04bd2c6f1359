#include "common/gpu/peer_kernels.hpp"

#include <algorithm>

#include "common/gpu/elementwise.cuh"
#include "common/gpu/native.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kWarp = 32;
static_assert(kMostPeers <= kWarp, "a lane per rank");

/// What this GPU wrote before, in earlier kernels too, can be read by the rank that acquires the
/// value.
__device__ void store_release(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ std::uint64_t load_acquire(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ std::uint64_t load_relaxed(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

/// Polls until the rank has come to this meeting; returns its word, or 0 where the host aborts or
/// time is up. Looks at both seldom: the status is host memory. Only the last load acquires: each
/// such load empties the multiprocessor's L1 cache, which backward uses.
__device__ std::uint64_t await(const std::uint64_t* arrived, std::uint64_t meeting,
                               const volatile PeerStatus* status, std::uint64_t timeout_ns) {
  constexpr unsigned kPollsPerLook = 256;
  const std::uint64_t start = nanoseconds();
  for (unsigned polls = 1;; ++polls) {
    if (load_relaxed(arrived) >= 2 * meeting) return load_acquire(arrived);
    if (polls % kPollsPerLook == 0 && (status->aborted || nanoseconds() - start > timeout_ns))
      return 0;
    __nanosleep(32);
  }
}

/// One warp, a lane per rank.
__global__ void meet_kernel(PeerTable table, std::int32_t* flag) {
  PeerWords& own = *table.words[table.rank];
  volatile PeerStatus* status = table.status;
  const int peer = static_cast<int>(threadIdx.x);
  const std::uint64_t meeting = own.meetings + 1;
  const bool mine = flag == nullptr || *flag != 0;
  bool present = own.stopped == 0;
  bool good = true;
  __syncwarp();  // all lanes have read what one will write
  if (present && peer < table.ranks) {
    const std::uint64_t way = meeting % 2;
    store_release(&table.words[peer]->arrived[way][table.rank], 2 * meeting + (mine ? 1 : 0));
    const std::uint64_t word = await(&own.arrived[way][peer], meeting, status, table.timeout_ns);
    present = word != 0;
    good = word % 2 == 1;
    if (!present) status->missing = 1 + peer;
  }
  const bool all_present = __all_sync(0xFFFFFFFFU, present);
  const bool all_good = __all_sync(0xFFFFFFFFU, good);
  if (threadIdx.x > 0) return;
  own.meetings = meeting;
  if (!all_present) own.stopped = 1;
  if (flag != nullptr) *flag = all_present && all_good ? 1 : 0;
}

constexpr int kAverageBlocks = 32;  // next to backward; with what is in flight enough for NVLink
constexpr int kAverageThreads = 512;
constexpr int kInFlight = 4;  // groups that a thread loads from a rank before it adds them

template <class T>
__global__ void __launch_bounds__(kAverageThreads)
    average_kernel(const __grid_constant__ PeerPlaces from, int ranks, T* to, std::size_t count,
                   float factor, std::int32_t* all_finite, const std::int32_t* stopped) {
  if (*stopped) return;
  constexpr std::size_t kStride = static_cast<std::size_t>(kAverageThreads) * kGroup;
  bool finite = true;
  for (std::size_t tile = blockIdx.x * kInFlight * kStride; tile < count;
       tile += gridDim.x * kInFlight * kStride) {
    const std::size_t first = tile + threadIdx.x * kGroup;
    float sum[kInFlight][kGroup] = {};
#pragma unroll 1  // else loads of the next rank take the registers that keep these in flight
    for (int r = 0; r < ranks; ++r) {
      const T* source = static_cast<const T*>(from.at[r]);
      Vector<T, kGroup> x[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (first + i * kStride < count)
          x[i] = Vector<T, kGroup>::load(source + first + i * kStride);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        for (int e = 0; e < kGroup; ++e) sum[i][e] += to_float(x[i].x[e]);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kStride >= count) continue;
      for (float& element : sum[i]) {
        element *= factor;
        finite &= static_cast<bool>(isfinite(element));
      }
      store_group(to, first + i * kStride, count, sum[i]);
    }
  }
  if (!finite && all_finite != nullptr) *all_finite = 0;  // every writer writes the same
}

__global__ void push_chunks_kernel(const __grid_constant__ PeerPlaces to, int ranks,
                                   const float* from, const std::int64_t* sources,
                                   const std::int32_t* stopped) {
  const std::int64_t chunk = sources[blockIdx.x];
  if (chunk < 0 || *stopped) return;
  const float x = from[chunk * static_cast<std::int64_t>(kFlatAlignment) + threadIdx.x];
  for (int r = 0; r < ranks; ++r)
    static_cast<float*>(to.at[r])[blockIdx.x * kFlatAlignment + threadIdx.x] = x;
}

__global__ void copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to,
                            std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride)
    to[i] = from[i];
}

}  // namespace

void launch_meet(const PeerTable& table, std::int32_t* flag, Stream& stream) {
  meet_kernel<<<1, kWarp, 0, native(stream)>>>(table, flag);
  CHECK_LAUNCH();
}

void launch_average(const PeerTable& table, const PeerPlaces& from, View to, std::int32_t* finite,
                    Stream& stream) {
  constexpr std::size_t kTile = std::size_t{kAverageThreads} * kGroup * kInFlight;
  const std::size_t tiles = (to.count + kTile - 1) / kTile;
  if (tiles == 0) return;
  const auto blocks = static_cast<unsigned>(std::min<std::size_t>(tiles, kAverageBlocks));
  const float factor = 1.0F / static_cast<float>(table.ranks);
  dispatch(to, [&](auto* own) {
    average_kernel<<<blocks, kAverageThreads, 0, native(stream)>>>(
        from, table.ranks, own, to.count, factor, finite, &table.own()->stopped);
  });
  CHECK_LAUNCH();
}

void launch_push_chunks(const PeerTable& table, const PeerPlaces& to, std::size_t chunks,
                        const float* from, const std::int64_t* sources, Stream& stream) {
  if (chunks == 0) return;
  push_chunks_kernel<<<static_cast<unsigned>(chunks), kFlatAlignment, 0, native(stream)>>>(
      to, table.ranks, from, sources, &table.own()->stopped);
  CHECK_LAUNCH();
}

void launch_copy(View to, ConstView from, Stream& stream) {
  constexpr int kBlocksPerSm = 2;
  constexpr int kThreads = 512;
  int device = 0;
  int sms = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  copy_kernel<<<static_cast<unsigned>(kBlocksPerSm * sms), kThreads, 0, native(stream)>>>(
      static_cast<const uint4*>(from.data), static_cast<uint4*>(to.data),
      to.bytes() / sizeof(uint4));
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
