// Building blocks of the gpu backend's elementwise kernels: groups of elements that a thread
// loads and stores together, in float32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "common/ensure.hpp"
#include "common/gpu/vector.cuh"
#include "common/kernels.hpp"
#include "common/types.hpp"

namespace shakedown::gpu {

constexpr int kThreads = 256;
constexpr int kGroup = 8;  // consecutive elements a thread takes; a decay chunk is whole groups
static_assert(kFlatAlignment % kGroup == 0);

inline unsigned blocks_for(std::size_t items) {
  return static_cast<unsigned>(std::max<std::size_t>(1, (items + kThreads - 1) / kThreads));
}

__device__ inline std::size_t global_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// The same on all multiprocessors; in steps of up to a microsecond.
__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
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
    default: ENSURE(false, std::string("elementwise kernel on ") + name_of(x.type));
  }
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

}  // namespace shakedown::gpu
