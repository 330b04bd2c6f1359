// Kernels that stream through device memory, as fast as it goes, over words that can be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/device.hpp"

namespace shakedown::node {

/// The words of a buffer: word i = first + i * step, modulo 2^64. An odd, large step changes most
/// bits from word to word. Sums of ramps are ramps: exact in any order.
struct Ramp {
  std::uint64_t first = 0;
  std::uint64_t step = 0x9E3779B97F4A7C15U;

  constexpr std::uint64_t word(std::uint64_t i) const { return first + i * step; }
  constexpr Ramp from(std::uint64_t i) const { return {word(i), step}; }
};

/// The sum of words [0, count), modulo 2^64.
constexpr std::uint64_t sum_of(const Ramp& ramp, std::uint64_t count) {
  const std::uint64_t pairs = count % 2 == 0 ? count / 2 * (count - 1) : (count - 1) / 2 * count;
  return ramp.first * count + ramp.step * pairs;
}

inline constexpr std::uint64_t kTriadFactor = 3;
/// What triad() makes of two ramps.
constexpr Ramp triad_of(const Ramp& x, const Ramp& y) {
  return {x.first + kTriadFactor * y.first, x.step + kTriadFactor * y.step};
}

/// What check() has found; in device memory while it runs.
struct WordErrors {
  unsigned long long count = 0;
  unsigned long long first = ~0ULL;  // the lowest index among them
};

/// Views are of uint64, in device memory or pinned host memory, a multiple of kChunkBytes each.
class StreamKernels {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{32} << 10;

  virtual ~StreamKernels() = default;
  virtual void write(View x, const Ramp& ramp, Stream& stream) const = 0;
  /// *sum += all words; `sum` is device memory.
  virtual void read(ConstView x, std::uint64_t* sum, Stream& stream) const = 0;
  virtual void copy(ConstView from, View to, Stream& stream) const = 0;
  /// to[i] = x[i] + 3 y[i]: integers, so that every bit can be checked.
  virtual void triad(ConstView x, ConstView y, View to, Stream& stream) const = 0;
  virtual void check(ConstView x, const Ramp& ramp, WordErrors* wrong, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<StreamKernels> make_stream_kernels();
}
namespace gpu {
std::unique_ptr<StreamKernels> make_stream_kernels();
}
inline std::unique_ptr<StreamKernels> make_stream_kernels(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_stream_kernels() : cpu::make_stream_kernels();
}

// The same of host memory, on all threads.

void write_on_host(View x, const Ramp& ramp);
WordErrors check_on_host(ConstView x, const Ramp& ramp);

/// What was wrong in pieces of one buffer; on the stream.
class WordChecker {
 public:
  WordChecker(Device& device, std::size_t pieces)
      : device_(device),
        kernels_(make_stream_kernels(device.kind())),
        wrong_(device, pieces * sizeof(WordErrors)) {}

  const StreamKernels& kernels() const { return *kernels_; }
  /// Waits. Pieces of equal size; `expected`: of each.
  WordErrors check(ConstView x, std::size_t pieces,
                   const std::function<Ramp(std::uint64_t piece)>& expected, Stream& stream) const;
  WordErrors check(ConstView x, const Ramp& ramp, Stream& stream) const {
    return check(
        x, 1, [&](std::uint64_t) { return ramp; }, stream);
  }

 private:
  Device& device_;
  std::unique_ptr<StreamKernels> kernels_;
  Buffer wrong_;
};

}  // namespace shakedown::node
