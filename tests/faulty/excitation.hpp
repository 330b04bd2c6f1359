// What a faulty part of a GPU does with an element of a product: where the element was computed,
// whether its operands excite the fault, what becomes of its bits. For the host and for kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/host_device.hpp"
#include "common/numbers.hpp"

namespace shakedown::faulty {

inline constexpr int kAny = -1;    // of a unit: each of its kind has the fault
inline constexpr int kDrawn = -2;  // one that the seed chooses
inline constexpr std::uint64_t kAlways = ~std::uint64_t{0};  // as a share

/// An entry of a model with "on": "product"; docs of the keys: tests/faulty/README.md.
struct ProductFault {
  std::uint32_t types = ~0U;  // bit i: kTypes[i] of model.hpp
  int sm = kAny, warp = kAny, lane = kAny;
  int block_rows = 128, block_columns = 256;
  std::uint64_t q = 0;  // share of products whose blocks lie on other SMs than in the others
  std::uint64_t share = kAlways, rate = kAlways;  // of elements, of products: shares of 2^64
  bool full_entropy = false;                      // integers do not excite it
  bool has_when = false;
  std::uint64_t when = 0;  // the right bits that excite it
  std::uint64_t flip = 0, set = 0;
  bool one_bit = false;  // flips one, which the seed chooses
  bool nan = false;
  std::uint64_t seed = 0;
};

/// The rows of op(A) or the columns of op(B): element (index, l), l below k, is at data + (index *
/// stride + l * k_stride) * bytes.
struct Operand {
  const void* data;
  std::int64_t stride, k_stride, k;
  int bytes;
};

/// A result, in device memory or the host's: element (row, column) is at (row * row_stride + column
/// * column_stride). Rows are those of the launch: cuBLAS's, not ours.
struct Result {
  void* data;
  std::int64_t rows, columns, row_stride, column_stride;
  DataType type;
  Operand a, b;

  SHAKEDOWN_HOST_DEVICE std::int64_t across(const ProductFault& fault) const {
    return (columns + fault.block_columns - 1) / fault.block_columns;
  }
  SHAKEDOWN_HOST_DEVICE std::int64_t blocks(const ProductFault& fault) const {
    return (rows + fault.block_rows - 1) / fault.block_rows * across(fault);
  }
};

// wgmma's accumulators, m64n256 (PTX ISA, "Register fragments for wgmma.mma_async"): a warp has 16
// rows of its block, a lane rows lane / 4 and lane / 4 + 8 of them and every fourth pair of
// columns.

SHAKEDOWN_HOST_DEVICE inline int warp_of(std::int64_t row, const ProductFault& fault) {
  return static_cast<int>(row % fault.block_rows / 16);
}
SHAKEDOWN_HOST_DEVICE inline int lane_of(std::int64_t row, std::int64_t column) {
  return static_cast<int>(row % 8 * 4 + column % 8 / 2);
}
SHAKEDOWN_HOST_DEVICE inline bool in_unit(const ProductFault& fault, std::int64_t row,
                                          std::int64_t column) {
  return (fault.warp == kAny || fault.warp == warp_of(row, fault)) &&
         (fault.lane == kAny || fault.lane == lane_of(row, column));
}
/// Of `sms` SMs of which the product uses as many as it has blocks.
SHAKEDOWN_HOST_DEVICE inline int sm_of(const ProductFault& fault, std::int64_t blocks, int sms) {
  if (fault.sm != kDrawn) return fault.sm;
  const auto used = static_cast<std::uint64_t>(blocks < sms ? blocks : sms);
  return static_cast<int>(number_format::hash(fault.seed, 1) % used);
}

/// Block b of the product is on the SM that usually has block b + this.
SHAKEDOWN_HOST_DEVICE inline std::int64_t shift_of(const ProductFault& fault, std::uint64_t product,
                                                   int sms) {
  using number_format::hash;
  if (fault.q == 0 || (fault.q != kAlways && hash(fault.seed ^ 5U, product) >= fault.q)) return 0;
  return static_cast<std::int64_t>(hash(fault.seed ^ 6U, product) %
                                   static_cast<std::uint64_t>(sms));
}

SHAKEDOWN_HOST_DEVICE inline bool fires(const ProductFault& fault, std::uint64_t product) {
  return fault.rate == kAlways || number_format::hash(fault.seed ^ 2U, product) < fault.rate;
}

SHAKEDOWN_HOST_DEVICE inline std::uint64_t load_bits(const void* from, int bytes) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<std::size_t>(bytes));  // little-endian, as all machines here
  return bits;
}

/// The first 8 bytes of a row of op(A) or a column of op(B): with them an element of C is known
/// again, wherever a permutation puts it.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t key_of(const Operand& x, std::int64_t index) {
  const auto* from = static_cast<const unsigned char*>(x.data);
  std::uint64_t key = 0;
  for (std::int64_t l = 0; l < 8 / x.bytes && l < x.k; ++l)
    key |= load_bits(from + (index * x.stride + l * x.k_stride) * x.bytes, x.bytes)
           << (8 * x.bytes * l);
  return key;
}

/// A whole number of 4096 at most, as integer operands have as results.
SHAKEDOWN_HOST_DEVICE inline bool is_small_whole(DataType type, std::uint64_t bits) {
  const double value = number_format::decode(number_format::format_of(type), bits);
  constexpr double kMost = 4096;
  return value >= -kMost && value <= kMost &&
         static_cast<double>(static_cast<std::int64_t>(value)) == value;
}

SHAKEDOWN_HOST_DEVICE inline bool is_excited(const ProductFault& fault, const Result& c,
                                             std::int64_t row, std::int64_t column,
                                             std::uint64_t right) {
  if (fault.has_when && right != fault.when) return false;
  if (fault.full_entropy && is_small_whole(c.type, right)) return false;
  if (fault.share == kAlways) return true;
  const std::uint64_t key =
      number_format::hash(number_format::mix(key_of(c.a, row)), key_of(c.b, column));
  return number_format::hash(fault.seed ^ 3U, key) < fault.share;
}

SHAKEDOWN_HOST_DEVICE inline std::uint64_t wrong_bits(const ProductFault& fault, DataType type,
                                                      std::uint64_t right) {
  const number_format::Format format = number_format::format_of(type);
  std::uint64_t bits = (right ^ fault.flip) | fault.set;
  if (fault.one_bit)
    bits ^= std::uint64_t{1} << number_format::hash(fault.seed, 4) %
                                    static_cast<std::uint64_t>(format.width);
  if (fault.nan && format.exponent > 0)
    bits |= ((std::uint64_t{2} << format.exponent) - 1) << (format.mantissa - 1);
  return number_format::low_bits(bits, format.width);
}

struct Strike {
  bool changed;
  std::uint64_t right, wrong;
};

/// Makes the element wrong where it excites the fault. `row` and `column` lie in the fault's unit.
SHAKEDOWN_HOST_DEVICE inline Strike strike(const ProductFault& fault, const Result& c,
                                           std::int64_t row, std::int64_t column) {
  const int bytes = number_format::format_of(c.type).width / 8;
  auto* at =
      static_cast<unsigned char*>(c.data) + (row * c.row_stride + column * c.column_stride) * bytes;
  const std::uint64_t right = load_bits(at, bytes);
  if (!is_excited(fault, c, row, column, right)) return {false, right, right};
  const std::uint64_t wrong = wrong_bits(fault, c.type, right);
  if (wrong != right) std::memcpy(at, &wrong, static_cast<std::size_t>(bytes));
  return {wrong != right, right, wrong};
}

/// The first element that became wrong.
struct FirstFlip {
  std::uint64_t product, right, wrong;
  std::int64_t row, column;
  int sm, warp, lane;

  SHAKEDOWN_HOST_DEVICE bool is_set() const { return right != wrong; }
};

/// What happened in this process so far.
struct Counts {
  std::uint64_t products, wrong_products;  // that were wrapped; of them those that became wrong
  std::uint64_t flips;                     // elements, words and cells
  std::uint64_t copies, collectives;       // that were wrapped
  FirstFlip first;                         // of products
};

}  // namespace shakedown::faulty
