// Loops over the elements of a product's matrices, on all threads.
#pragma once

#include <cstring>

#include "common/types.hpp"
#include "launch/node/compute/operands.hpp"

namespace shakedown::node::cpu {

/// Element `index` of a view, of any type, as its bits.
inline std::uint64_t bits_at(ConstView x, std::size_t index) {
  const std::size_t width = size_of(x.type);
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const std::byte*>(x.data) + index * width, width);
  return bits;
}

/// As the kernel gpu::fill_operand: x[i] = the operand's element i.
inline void fill_operand(View x, const OperandRule& rule) {
  const std::size_t width = size_of(x.type);
  auto* const to = static_cast<std::byte*>(x.data);
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < x.count; ++i) {
    const std::uint64_t bits = operand_bits(rule, i);  // little-endian, as all machines here
    std::memcpy(to + i * width, &bits, width);
  }
}

}  // namespace shakedown::node::cpu
