// The fault that tests inject: one wrong bit.
#pragma once

#include "common/device.hpp"

namespace shakedown::node {

/// Flips a bit of element `index`; waits for the stream.
inline void flip_bit(View x, std::size_t index, int bit, Device& device, Stream& stream) {
  auto* const byte = static_cast<std::uint8_t*>(x.data) + index * size_of(x.type) + bit / 8;
  auto value = download<std::uint8_t>(device, stream, byte, 1);
  value[0] = static_cast<std::uint8_t>(value[0] ^ (1U << (bit % 8)));
  upload<std::uint8_t>(device, stream, byte, value);
}

}  // namespace shakedown::node
