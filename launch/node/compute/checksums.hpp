// Sums of the rows and columns of matrices, exact in 64-bit integers: of operands by their formula,
// of C as it lies in memory.
#pragma once

#include <cstddef>
#include <memory>

#include "common/device.hpp"
#include "launch/node/compute/operands.hpp"

namespace shakedown::node {

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

/// Calls body with the source of a result's elements.
template <class Body>
void with_source(ConstView c, Body&& body) {
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

/// Sums and weights are int64 in device memory; sums wrap around.
class Checksums {
 public:
  virtual ~Checksums() = default;
  /// sums[l] = sum over the rows r of element (r, l).
  virtual void columns_of(const OperandRule& rule, MatrixShape shape, View sums,
                          Stream& stream) const = 0;
  virtual void columns_of(ConstView c, MatrixShape shape, View sums, Stream& stream) const = 0;
  /// sums[r] = sum over the columns l of element (r, l) * weights[l].
  virtual void rows_of(const OperandRule& rule, MatrixShape shape, ConstView weights, View sums,
                       Stream& stream) const = 0;
  /// The same with weights of 1.
  virtual void rows_of(ConstView c, MatrixShape shape, View sums, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<Checksums> make_checksums();
}
namespace gpu {
std::unique_ptr<Checksums> make_checksums();
}

}  // namespace shakedown::node
