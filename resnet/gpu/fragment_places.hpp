// Which rows and columns of a product on wgmma a thread has. Functions of numbers alone: tests
// follow them on the host.
#pragma once

#include "common/host_device.hpp"

namespace shakedown::gpu {

/// Tensor cores compute 32 columns of a product in the order 8 g + 2 t + e for column 8 t + 2 g +
/// e: the eight columns of a thread are adjacent then (mma.cuh).
SHAKEDOWN_HOST_DEVICE constexpr unsigned placed_column(unsigned column) {
  return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

/// In a tile of 64 rows, of a warpgroup's thread: the row of half 0 or 1.
SHAKEDOWN_HOST_DEVICE constexpr unsigned fragment_row(unsigned thread, unsigned half) {
  return thread / 32 % 4 * 16 + thread % 32 / 4 + half * 8;
}
/// The first of its eight adjacent columns in each 32.
SHAKEDOWN_HOST_DEVICE constexpr unsigned fragment_column(unsigned thread) { return thread % 4 * 8; }
/// Which of its accumulators has half `half` and column v of the eight in group q of 32.
SHAKEDOWN_HOST_DEVICE constexpr unsigned accumulator_of(unsigned q, unsigned half, unsigned v) {
  return (q * 4 + v / 2) * 4 + half * 2 + v % 2;
}

}  // namespace shakedown::gpu
