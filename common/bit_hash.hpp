// A hash of what memory holds, to the last bit: the sum over its elements of a mix of each one's
// index and bits, which does not depend on the order in which they are added.
#pragma once

#include <cstdint>

#include "common/host_device.hpp"
#include "common/types.hpp"

namespace shakedown {

/// For one index a bijection of the bits (splitmix64's finalizer): one wrong element always changes
/// the sum.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t element_hash(std::uint64_t index, std::uint64_t bits) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15U + bits * 0xD1342543DE82EF95U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

/// Of memory that the host reads; Kernels::add_bit_hash computes the same on the device.
std::uint64_t bit_hash(ConstView x);

}  // namespace shakedown
