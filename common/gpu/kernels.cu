#include "common/kernels.hpp"

#include "common/ensure.hpp"
#include "common/gpu/elementwise.cuh"
#include "common/gpu/native.hpp"
#include "common/hash.hpp"

namespace shakedown::gpu {
namespace {

template <class T>
__global__ void fill_kernel(T* to, float value, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  for (float& element : x) element = value;
  store_group(to, first, count, x);
}

/// to = from * factor; conversion where the factor is 1.
template <class From, class To>
__global__ void scale_kernel(const From* from, To* to, float factor, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  load_group(from, first, count, x);
  for (float& element : x) element *= factor;
  store_group(to, first, count, x);
}

template <class T>
__global__ void accumulate_kernel(float* sum, const T* from, bool fresh, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  float total[kGroup] = {};
  load_group(from, first, count, x);
  if (!fresh) load_group(sum, first, count, total);
  for (int i = 0; i < kGroup; ++i) total[i] += x[i];
  store_group(sum, first, count, total);
}

template <class T>
__global__ void check_finite_kernel(const T* from, std::int32_t* all_finite, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  load_group(from, first, count, x);
  bool finite = true;
  for (float element : x) finite &= isfinite(element);
  if (!finite) *all_finite = 0;  // every writer writes the same
}

template <class Word>
__global__ void bit_hash_kernel(const Word* x, unsigned long long* hash, std::size_t count) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned long long mine = 0;
  for (std::size_t i = global_thread(); i < count; i += stride) mine += element_hash(i, x[i]);
  for (int lane = 16; lane > 0; lane /= 2) mine += __shfl_down_sync(0xFFFFFFFFU, mine, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(hash, mine);
}

template <class T>
__global__ void stamp_kernel(T* to, Stamps stamps, std::uint32_t contributor, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  for (int i = 0; i < kGroup; ++i) x[i] = stamp_by(contributor, stamps, first + i);
  store_group(to, first, count, x);
}

template <class T>
__global__ void check_stamps_kernel(const T* from, Stamps stamps, StampErrors* errors,
                                    std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  load_group(from, first, count, x);
  for (int i = 0; i < kGroup && first + i < count; ++i) {
    if (is_average(x[i], stamps, first + i)) continue;
    atomicAdd(reinterpret_cast<unsigned long long*>(&errors->wrong), 1ULL);
    atomicMin(reinterpret_cast<unsigned long long*>(&errors->first),
              (stamps.first + first + i) << 32 | __float_as_uint(x[i]));
  }
}

__global__ void gather_chunks_kernel(float* to, const float* from, const std::int64_t* sources) {
  const std::int64_t chunk = sources[blockIdx.x];
  to[blockIdx.x * kFlatAlignment + threadIdx.x] =
      chunk < 0 ? 0.0F : from[chunk * static_cast<std::int64_t>(kFlatAlignment) + threadIdx.x];
}

/// Moves the time from which one way of a link is free, and returns it; 0 where it is not needed.
/// Several streams may do so at once.
__device__ std::uint64_t occupy(std::uint64_t* free_at, std::uint64_t now, std::uint64_t needed) {
  if (needed == 0) return 0;
  auto* address = reinterpret_cast<unsigned long long*>(free_at);
  unsigned long long found = atomicAdd(address, 0ULL);
  for (;;) {
    const unsigned long long end = (found > now ? found : now) + needed;
    const unsigned long long expected = found;
    found = atomicCAS(address, expected, end);
    if (found == expected) return end;
  }
}

__global__ void occupy_link_kernel(DuplexTime* free_at, DuplexTime needed) {
  const std::uint64_t now = nanoseconds();
  const std::uint64_t sent = occupy(&free_at->send, now, needed.send);
  const std::uint64_t received = occupy(&free_at->receive, now, needed.receive);
  const std::uint64_t end = sent > received ? sent : received;
  while (nanoseconds() < end) __nanosleep(500);
}

/// Launches a kernel whose threads take groups of `count` elements, which is its last argument.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Stream& stream, std::size_t count,
            Arguments... arguments) {
  kernel<<<blocks_for(count / kGroup + 1), kThreads, 0, native(stream)>>>(arguments..., count);
  CHECK_LAUNCH();
}

class CudaKernels final : public Kernels {
 public:
  void fill(View x, double value, Stream& stream) const override {
    dispatch(x, [&]<class T>(T* to) {
      launch(fill_kernel<T>, stream, x.count, to, static_cast<float>(value));
    });
  }

  void convert(ConstView from, View to, Stream& stream) const override {
    ENSURE(from.count == to.count, "convert counts");
    dispatch(from, [&]<class From>(const From* source) {
      dispatch(to, [&]<class To>(To* target) {
        launch(scale_kernel<From, To>, stream, to.count, source, target, 1.0F);
      });
    });
  }

  void accumulate(View sum, ConstView x, bool first, Stream& stream) const override {
    ENSURE(sum.count == x.count && sum.type == DataType::float32, "accumulate views");
    dispatch(x, [&]<class T>(const T* from) {
      launch(accumulate_kernel<T>, stream, x.count, static_cast<float*>(sum.data), from, first);
    });
  }

  void scale(ConstView from, View to, float factor, Stream& stream) const override {
    ENSURE(from.count == to.count && from.type == DataType::float32, "scale views");
    dispatch(to, [&]<class T>(T* target) {
      launch(scale_kernel<float, T>, stream, to.count, static_cast<const float*>(from.data), target,
             factor);
    });
  }

  void gather_chunks(View to, ConstView from, const std::int64_t* sources,
                     Stream& stream) const override {
    gather_chunks_kernel<<<static_cast<unsigned>(to.count / kFlatAlignment), kFlatAlignment, 0,
                           native(stream)>>>(static_cast<float*>(to.data),
                                             static_cast<const float*>(from.data), sources);
    CHECK_LAUNCH();
  }

  void check_finite(ConstView x, std::int32_t* finite, Stream& stream) const override {
    dispatch(x, [&]<class T>(const T* from) {
      launch(check_finite_kernel<T>, stream, x.count, from, finite);
    });
  }

  void add_bit_hash(ConstView x, std::uint64_t* hash, Stream& stream) const override {
    constexpr unsigned kMostBlocks = 2048;  // a warp adds its sum once: few atomics
    const auto add = [&]<class Word>(Word) {
      bit_hash_kernel<<<std::min(blocks_for(x.count), kMostBlocks), kThreads, 0, native(stream)>>>(
          static_cast<const Word*>(x.data), reinterpret_cast<unsigned long long*>(hash), x.count);
    };
    switch (size_of(x.type)) {
      case 1: add(std::uint8_t{}); break;
      case 2: add(std::uint16_t{}); break;
      case 4: add(std::uint32_t{}); break;
      default: add(std::uint64_t{});
    }
    CHECK_LAUNCH();
  }

  void stamp(View x, const Stamps& stamps, std::uint32_t contributor,
             Stream& stream) const override {
    dispatch(x, [&]<class T>(T* to) {
      launch(stamp_kernel<T>, stream, x.count, to, stamps, contributor);
    });
  }

  void check_stamps(ConstView x, const Stamps& stamps, StampErrors* errors,
                    Stream& stream) const override {
    dispatch(x, [&]<class T>(const T* from) {
      launch(check_stamps_kernel<T>, stream, x.count, from, stamps, errors);
    });
  }

  void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const override {
    occupy_link_kernel<<<1, 1, 0, native(stream)>>>(free_at, needed);
    CHECK_LAUNCH();
  }
};

}  // namespace

const Kernels& kernels() {
  static const CudaKernels kernels{};
  return kernels;
}

}  // namespace shakedown::gpu
