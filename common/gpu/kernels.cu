#include "common/gpu/kernels.hpp"

#include <algorithm>

#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "common/gpu/vector.cuh"
#include "common/update.hpp"

namespace shakedown::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 8;  // consecutive elements a thread takes; a decay chunk is whole groups
static_assert(kFlatAlignment % kGroup == 0);

unsigned blocks_for(std::size_t items) {
  return static_cast<unsigned>(std::max<std::size_t>(1, (items + kThreads - 1) / kThreads));
}

__device__ std::size_t global_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// Calls body with a typed pointer to the elements of x.
template <class Byte, class Body>
void dispatch(BasicView<Byte> x, Body&& body) {
  using Float = std::conditional_t<std::is_const_v<Byte>, const float, float>;
  using Half = std::conditional_t<std::is_const_v<Byte>, const __half, __half>;
  using Bfloat = std::conditional_t<std::is_const_v<Byte>, const __nv_bfloat16, __nv_bfloat16>;
  switch (x.type) {
    case DataType::float32: return body(static_cast<Float*>(x.data));
    case DataType::float16: return body(static_cast<Half*>(x.data));
    case DataType::bfloat16: return body(static_cast<Bfloat*>(x.data));
    default: throw InternalError(std::string("elementwise kernel on ") + name_of(x.type));
  }
}

/// The same with typed pointers to the gradients and to the copy of the weights, which is null and
/// of the gradients' type where there is none.
template <class Body>
void dispatch(const UpdateRange& range, Body&& body) {
  const ConstView gradients(range.gradient, range.count, range.gradient_type, Place::device);
  const View copy(range.compute, range.count, range.compute_type, Place::device);
  dispatch(gradients, [&]<class Gradient>(const Gradient* gradient) {
    if (copy.data == nullptr) return body(gradient, static_cast<Gradient*>(nullptr));
    dispatch(copy, [&](auto* compute) { body(gradient, compute); });
  });
}

/// Loads kGroup floats from `from`, fewer at the end of the array.
template <class T>
__device__ void load_group(const T* from, std::size_t first, std::size_t count,
                           float (&x)[kGroup]) {
  if (first + kGroup <= count) {
    constexpr int width = vector_width<T> < kGroup ? vector_width<T> : kGroup;
#pragma unroll
    for (int v = 0; v < kGroup; v += width) {
      const auto loaded = Vector<T, width>::load(from + first + v);
#pragma unroll
      for (int i = 0; i < width; ++i) x[v + i] = to_float(loaded.x[i]);
    }
  } else {
    for (int i = 0; i < kGroup; ++i) x[i] = first + i < count ? to_float(from[first + i]) : 0.0F;
  }
}

template <class T>
__device__ void store_group(T* to, std::size_t first, std::size_t count, const float (&x)[kGroup]) {
  if (first + kGroup <= count) {
    constexpr int width = vector_width<T> < kGroup ? vector_width<T> : kGroup;
#pragma unroll
    for (int v = 0; v < kGroup; v += width) {
      Vector<T, width> stored;
#pragma unroll
      for (int i = 0; i < width; ++i) stored.x[i] = from_float<T>(x[v + i]);
      stored.store(to + first + v);
    }
  } else {
    for (int i = 0; i < kGroup; ++i)
      if (first + i < count) to[first + i] = from_float<T>(x[i]);
  }
}

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
__global__ void check_finite_kernel(const T* from, StepScalars* scalars, std::size_t count) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= count) return;
  float x[kGroup];
  load_group(from, first, count, x);
  bool finite = true;
  for (float element : x) finite &= isfinite(element);
  if (!finite) scalars->finite = 0;  // every writer writes the same
}

template <class Gradient, class Compute>
__global__ void sgd_kernel(UpdateRange r, SgdSettings settings, const StepScalars* scalars) {
  const std::size_t first = global_thread() * kGroup;
  if (first >= r.count || !scalars->finite) return;
  const float unscale = 1.0F / scalars->loss_scale;
  const float rate = scalars->learning_rate;
  const bool decayed = r.decayed == nullptr || r.decayed[first / kFlatAlignment];
  float w[kGroup];
  float m[kGroup];
  float g[kGroup];
  load_group(r.master, first, r.count, w);
  load_group(r.state_a, first, r.count, m);
  load_group(static_cast<const Gradient*>(r.gradient), first, r.count, g);
  for (int i = 0; i < kGroup; ++i) sgd_update(w[i], m[i], g[i] * unscale, decayed, settings, rate);
  store_group(r.master, first, r.count, w);
  store_group(r.state_a, first, r.count, m);
  if (r.compute != nullptr) store_group(static_cast<Compute*>(r.compute), first, r.count, w);
}

template <class Gradient, class Compute>
__global__ void adam_kernel(UpdateRange r, AdamSettings settings, const StepScalars* scalars) {
  __shared__ AdamStep step;
  if (threadIdx.x == 0) step = adam_step(settings, *scalars);
  __syncthreads();
  const std::size_t first = global_thread() * kGroup;
  if (first >= r.count || !scalars->finite) return;
  const float unscale = 1.0F / scalars->loss_scale;
  const bool decayed = r.decayed == nullptr || r.decayed[first / kFlatAlignment];
  float w[kGroup];
  float m[kGroup];
  float v[kGroup];
  float g[kGroup];
  load_group(r.master, first, r.count, w);
  load_group(r.state_a, first, r.count, m);
  load_group(r.state_b, first, r.count, v);
  load_group(static_cast<const Gradient*>(r.gradient), first, r.count, g);
  for (int i = 0; i < kGroup; ++i)
    adam_update(w[i], m[i], v[i], g[i] * unscale, decayed, settings, step);
  store_group(r.master, first, r.count, w);
  store_group(r.state_a, first, r.count, m);
  store_group(r.state_b, first, r.count, v);
  if (r.compute != nullptr) store_group(static_cast<Compute*>(r.compute), first, r.count, w);
}

__global__ void gather_chunks_kernel(float* to, const float* from, const std::int64_t* sources) {
  const std::int64_t chunk = sources[blockIdx.x];
  to[blockIdx.x * kFlatAlignment + threadIdx.x] =
      chunk < 0 ? 0.0F : from[chunk * static_cast<std::int64_t>(kFlatAlignment) + threadIdx.x];
}

__global__ void finish_update_kernel(StepScalars* scalars, bool dynamic_scale) {
  finish_step(*scalars, dynamic_scale);
}

__global__ void set_learning_rate_kernel(StepScalars* scalars, float value) {
  scalars->learning_rate = value;
}

/// The same on all multiprocessors; in steps of up to a microsecond.
__device__ std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
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

}  // namespace

void CudaKernels::fill(View x, double value, Stream& stream) const {
  dispatch(x, [&](auto* to) {
    fill_kernel<<<blocks_for(x.count / kGroup + 1), kThreads, 0, native(stream)>>>(
        to, static_cast<float>(value), x.count);
  });
  CHECK_LAUNCH();
}

void CudaKernels::convert(ConstView from, View to, Stream& stream) const {
  ENSURE(from.count == to.count, "convert counts");
  dispatch(from, [&](const auto* source) {
    dispatch(to, [&](auto* target) {
      scale_kernel<<<blocks_for(to.count / kGroup + 1), kThreads, 0, native(stream)>>>(
          source, target, 1.0F, to.count);
    });
  });
  CHECK_LAUNCH();
}

void CudaKernels::accumulate(View sum, ConstView x, bool first, Stream& stream) const {
  ENSURE(sum.count == x.count && sum.type == DataType::float32, "accumulate views");
  dispatch(x, [&](const auto* from) {
    accumulate_kernel<<<blocks_for(x.count / kGroup + 1), kThreads, 0, native(stream)>>>(
        static_cast<float*>(sum.data), from, first, x.count);
  });
  CHECK_LAUNCH();
}

void CudaKernels::scale(ConstView from, View to, float factor, Stream& stream) const {
  ENSURE(from.count == to.count && from.type == DataType::float32, "scale views");
  dispatch(to, [&](auto* target) {
    scale_kernel<<<blocks_for(to.count / kGroup + 1), kThreads, 0, native(stream)>>>(
        static_cast<const float*>(from.data), target, factor, to.count);
  });
  CHECK_LAUNCH();
}

void CudaKernels::gather_chunks(View to, ConstView from, const std::int64_t* sources,
                                Stream& stream) const {
  gather_chunks_kernel<<<static_cast<unsigned>(to.count / kFlatAlignment), kFlatAlignment, 0,
                         native(stream)>>>(static_cast<float*>(to.data),
                                           static_cast<const float*>(from.data), sources);
  CHECK_LAUNCH();
}

void CudaKernels::check_finite(ConstView x, StepScalars* scalars, Stream& stream) const {
  dispatch(x, [&](const auto* from) {
    check_finite_kernel<<<blocks_for(x.count / kGroup + 1), kThreads, 0, native(stream)>>>(
        from, scalars, x.count);
  });
  CHECK_LAUNCH();
}

void CudaKernels::sgd(const UpdateRange& range, const SgdSettings& settings,
                      const StepScalars* scalars, Stream& stream) const {
  dispatch(range, [&]<class Gradient, class Compute>(const Gradient*, Compute*) {
    sgd_kernel<Gradient, Compute>
        <<<blocks_for(range.count / kGroup + 1), kThreads, 0, native(stream)>>>(range, settings,
                                                                                scalars);
  });
  CHECK_LAUNCH();
}

void CudaKernels::adam(const UpdateRange& range, const AdamSettings& settings,
                       const StepScalars* scalars, Stream& stream) const {
  dispatch(range, [&]<class Gradient, class Compute>(const Gradient*, Compute*) {
    adam_kernel<Gradient, Compute>
        <<<blocks_for(range.count / kGroup + 1), kThreads, 0, native(stream)>>>(range, settings,
                                                                                scalars);
  });
  CHECK_LAUNCH();
}

void CudaKernels::finish_update(StepScalars* scalars, bool dynamic_scale, Stream& stream) const {
  finish_update_kernel<<<1, 1, 0, native(stream)>>>(scalars, dynamic_scale);
  CHECK_LAUNCH();
}

void CudaKernels::set_learning_rate(StepScalars* scalars, float value, Stream& stream) const {
  set_learning_rate_kernel<<<1, 1, 0, native(stream)>>>(scalars, value);
  CHECK_LAUNCH();
}

void CudaKernels::occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const {
  occupy_link_kernel<<<1, 1, 0, native(stream)>>>(free_at, needed);
  CHECK_LAUNCH();
}

}  // namespace shakedown::gpu
