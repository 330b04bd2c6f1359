// Elementwise kernels over flat buffers in device memory; and time as the stream has it, for what
// is slowed down. Every call is enqueued on the stream; pointers are device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "common/types.hpp"

namespace shakedown {

// Stamps: numbers that show, element by element of an average, whether each contributor is in it
// once. Shared by both backends' kernels.

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

class Stream;

/// Elements of a flat buffer to whose multiples parameters, shards and pieces are aligned.
inline constexpr std::size_t kFlatAlignment = 64;

/// Nanoseconds of each way of a full-duplex link.
struct DuplexTime {
  std::uint64_t send = 0;
  std::uint64_t receive = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  /// x[i] = value.
  virtual void fill(View x, double value, Stream& stream) const = 0;
  /// to[i] = from[i], rounded to nearest even. Types are float32, float16 or bfloat16.
  virtual void convert(ConstView from, View to, Stream& stream) const = 0;
  /// sum[i] = (first ? 0 : sum[i]) + x[i]; `sum` is float32.
  virtual void accumulate(View sum, ConstView x, bool first, Stream& stream) const = 0;
  /// to[i] = from[i] * factor; `from` is float32.
  virtual void scale(ConstView from, View to, float factor, Stream& stream) const = 0;
  /// Chunks of kFlatAlignment float32 elements: to's chunk c is from's chunk sources[c], or zeros
  /// where sources[c] is -1. `sources` is device memory.
  virtual void gather_chunks(View to, ConstView from, const std::int64_t* sources,
                             Stream& stream) const = 0;
  /// *finite = 0 if an element of x is infinite or not a number. `finite` is device memory.
  virtual void check_finite(ConstView x, std::int32_t* finite, Stream& stream) const = 0;
  /// *hash += bit_hash(x); see common/hash.hpp. `hash` is device memory.
  virtual void add_bit_hash(ConstView x, std::uint64_t* hash, Stream& stream) const = 0;
  /// x[i] = what a contributor stamps there, or 0.
  virtual void stamp(View x, const Stamps& stamps, std::uint32_t contributor,
                     Stream& stream) const = 0;
  /// Adds the elements of x that are no averages of stamps. `errors` is device memory.
  virtual void check_stamps(ConstView x, const Stamps& stamps, StampErrors* errors,
                            Stream& stream) const = 0;

  /// A link is busy each way for `needed` from now on, or from `free_at` on (its next free time on
  /// the device's clock, moved on by this) where that is later. What follows on the stream waits
  /// until then; other streams continue.
  virtual void occupy_link(DuplexTime* free_at, DuplexTime needed, Stream& stream) const = 0;
};

// Of the two backends' devices.
namespace cpu {
const Kernels& kernels();
}
namespace gpu {
const Kernels& kernels();
}

}  // namespace shakedown
