// Marks functions that a .cu file compiles for both sides, and that a .cpp file compiles as usual.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define SHAKEDOWN_HOST_DEVICE __host__ __device__
#else
#define SHAKEDOWN_HOST_DEVICE
#endif

namespace shakedown {

/// Requires x > 0.
SHAKEDOWN_HOST_DEVICE inline int floor_log2(std::uint64_t x) {
#ifdef __CUDA_ARCH__
  return 63 - __clzll(static_cast<long long>(x));
#else
  return static_cast<int>(std::bit_width(x)) - 1;
#endif
}

}  // namespace shakedown
