// 16-byte accesses and conversions for elementwise kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>


namespace shakedown::gpu {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// N elements of T that are loaded and stored together; 16 bytes when N is vector_width<T>.
template <class T, int N>
struct alignas(sizeof(T) * N) Vector {
  T x[N];

  __device__ static Vector load(const T* from) { return *reinterpret_cast<const Vector*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
};

template <class T>
inline constexpr int vector_width = static_cast<int>(16 / sizeof(T));

}  // namespace shakedown::gpu
