// What the kernels of libfaulty.so keep in device memory.
#pragma once

#include "tests/faulty/excitation.hpp"

namespace shakedown::faulty {

/// Blocks that the stand-in grid has at most: block b of a larger product is on the SM of b modulo
/// this.
inline constexpr std::uint32_t kBlocks = 1U << 16;

/// One per context.
struct State {
  Counts counts;
  std::uint64_t flips_before;  // the operation at work
  unsigned first_claimed;
  // SM of each block of a stand-in grid: at the start, and after this product
  std::uint32_t fixed[kBlocks], moving[kBlocks];
};

enum class Operation : int { product, copy, collective };

}  // namespace shakedown::faulty
