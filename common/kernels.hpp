// Elementwise kernels over flat buffers in device memory; and time as the stream has it, for what
// is slowed down. Every call is enqueued on the stream; pointers are device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/stamps.hpp"
#include "common/types.hpp"

namespace shakedown {

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
  /// *hash += bit_hash(x); see common/bit_hash.hpp. `hash` is device memory.
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

}  // namespace shakedown
