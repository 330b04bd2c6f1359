// ComputeKernels of each backend: a product's operands and the sums of its matrices, and words that
// are streamed through memory as fast as it goes. What they write is known to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

#include "common/device.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

// Of what rows and columns are summed: operands of integers by their formula, C as it lies in
// memory. The sums are exact in 64-bit integers, which wrap around.

using SummedMatrix = std::variant<OperandRule, ConstView>;
struct MatrixShape {
  std::int64_t rows = 0, columns = 0;
};

namespace checksums {

/// Element of an operand of integers.
struct OperandSource {
  OperandRule rule;
  SHAKEDOWN_HOST_DEVICE std::int64_t operator()(std::uint64_t index) const {
    return operands::integer(rule, index);
  }
};

/// Element of C. One that is no integer, as only an error makes it, counts as a large number that
/// depends on its bits.
template <class Bits>
struct ResultSource {
  const Bits* data;
  number_format::Format format;
  SHAKEDOWN_HOST_DEVICE std::int64_t operator()(std::uint64_t index) const {
    const std::uint64_t bits = static_cast<std::uint64_t>(data[index]);
    const double value = number_format::decode(format, bits);
    constexpr double kLargest = 0x1p53;
    if (value >= -kLargest && value <= kLargest) {
      const auto whole = static_cast<std::int64_t>(value);
      if (static_cast<double>(whole) == value) return whole;
    }
    return static_cast<std::int64_t>(number_format::mix(bits) >> 8) + (std::int64_t{1} << 56);
  }
};

/// Calls body with the source of the matrix's elements.
template <class Body>
void with_source(const SummedMatrix& matrix, Body&& body) {
  if (const auto* const rule = std::get_if<OperandRule>(&matrix)) return body(OperandSource{*rule});
  const auto& c = std::get<ConstView>(matrix);
  const number_format::Format format = number_format::format_of(c.type);
  switch (size_of(c.type)) {
    case 2:
      return body(ResultSource<std::uint16_t>{static_cast<const std::uint16_t*>(c.data), format});
    case 4:
      return body(ResultSource<std::uint32_t>{static_cast<const std::uint32_t*>(c.data), format});
    default:
      return body(ResultSource<std::uint64_t>{static_cast<const std::uint64_t*>(c.data), format});
  }
}

}  // namespace checksums

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

/// Functions enqueue on the stream.
class ComputeKernels {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{32} << 10;

  virtual ~ComputeKernels() = default;

  /// The operand's rows, of `columns` words (operand_word), in this order.
  virtual void fill_operand(View x, std::int64_t columns, const OperandRule& rule,
                            const LineOrder& order, Stream& stream) const = 0;
  /// Adds the words in memory that are others.
  virtual void compare_operand(View x, std::int64_t columns, const OperandRule& rule,
                               const LineOrder& order, WordErrors* wrong, Stream& stream) const = 0;

  // Sums and weights are int64 in device memory.

  /// sums[l] = sum over the rows r of element (r, l).
  virtual void columns_of(const SummedMatrix& matrix, MatrixShape shape, View sums,
                          Stream& stream) const = 0;
  /// sums[r] = sum over the columns l of element (r, l) * weights[l]; without weights, of 1 each.
  virtual void rows_of(const SummedMatrix& matrix, MatrixShape shape, ConstView weights, View sums,
                       Stream& stream) const = 0;

  // Views are of uint64, in device memory or pinned host memory, a multiple of kChunkBytes each.

  virtual void write(View x, const Ramp& ramp, Stream& stream) const = 0;
  /// *sum += all words; `sum` is device memory.
  virtual void read(ConstView x, std::uint64_t* sum, Stream& stream) const = 0;
  virtual void copy(ConstView from, View to, Stream& stream) const = 0;
  /// to[i] = x[i] + 3 y[i]: integers, so that every bit can be checked.
  virtual void triad(ConstView x, ConstView y, View to, Stream& stream) const = 0;
  virtual void check(ConstView x, const Ramp& ramp, WordErrors* wrong, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<ComputeKernels> make_compute_kernels();
}
namespace gpu {
std::unique_ptr<ComputeKernels> make_compute_kernels();
}
inline std::unique_ptr<ComputeKernels> make_compute_kernels(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_compute_kernels() : cpu::make_compute_kernels();
}

}  // namespace shakedown::node
