// Stamps: numbers that show, element by element of an average, whether each contributor is in it
// once. Shared by both backends' kernels.
#pragma once

#include <cstdint>

#include "common/host_device.hpp"
#include "common/number_format.hpp"

namespace shakedown {

/// Element e is stamped by contributor e % contributors alone, with a power of two that depends on
/// e, and is zero in the others. So sums are exact in every type and of any number of contributors;
/// one that is lost, doubled or taken for another changes its elements by a factor of two or more,
/// and so does a piece in another's place.
struct Stamps {
  std::uint32_t contributors = 1;
  std::uint64_t first = 0;  // number of a view's first element, below 2^32
};

/// Powers of two from 2^10, so that their shares of up to 2^24 contributors are no subnormal
/// numbers of float16.
SHAKEDOWN_HOST_DEVICE inline float stamp_of(std::uint64_t element) {
  return static_cast<float>(1U << (10U + (number_format::mix(element) & 3U)));
}

SHAKEDOWN_HOST_DEVICE inline float stamp_by(std::uint32_t contributor, const Stamps& stamps,
                                            std::uint64_t i) {
  const std::uint64_t element = stamps.first + i;
  return element % stamps.contributors == contributor ? stamp_of(element) : 0.0F;
}

/// Whether this is the average of all contributors' stamps: but for the roundings of a division or
/// a multiplication by the reciprocal, which in bfloat16 are up to 3 * 2^-9.
SHAKEDOWN_HOST_DEVICE inline bool is_average(float found, const Stamps& stamps, std::uint64_t i) {
  const float stamp = stamp_of(stamps.first + i);
  const float difference = found * static_cast<float>(stamps.contributors) - stamp;
  return difference <= stamp / 64 && difference >= -stamp / 64;  // false of what is not a number
}

/// What is no average of stamps.
struct StampErrors {
  std::uint64_t wrong = 0;  // elements
  std::uint64_t first =
      ~std::uint64_t{0};  // the first one's number << 32 | the bits found, as float32
};

}  // namespace shakedown
