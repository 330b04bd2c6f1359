// Matrix products by the vendor's library, with one algorithm, on operands that every GPU makes
// alike from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "launch/node/compute/turn.hpp"

namespace shakedown {
class MpiSession;
}

namespace shakedown::node {

struct WordErrors;  // stream_kernels.hpp

/// What is multiplied, and in what is accumulated: fp32 for tf32, fp16, bf16 and fp8; int32 for
/// int8. The result C has float64, float32 (fp32, tf32), float16, bfloat16 (bf16, fp8) or int32.
enum class ProductType { fp64, fp32, tf32, fp16, bf16, fp8, int8 };
std::vector<ProductType> all_product_types();
const char* name_of(ProductType type);  // "bf16"
DataType operand_type(ProductType type);
DataType result_type(ProductType type);

enum class Operands {
  integers,      // small ones, for which every sum is exact in any order, and so is C
  full_entropy,  // all bits of the significand in use, magnitudes as of normal data
};

/// C[m, n] = A[m, k] B[n, k]^T, all row-major.
struct ProductSpec {
  ProductType type = ProductType::bf16;
  std::int64_t m = 8192, n = 8192, k = 8192;
};

class Product {
 public:
  virtual ~Product() = default;
  virtual const ProductSpec& spec() const = 0;
  /// The library, its version and the algorithm's number: with the same text and the same model of
  /// GPU the bits of C are the same.
  virtual std::string algorithm() const = 0;
  /// What the library offers for this product, its first choice first. It may not run them all.
  virtual std::vector<std::string> algorithms() const = 0;

  /// A and B = values of (operands, seed, index) alone, with their rows where the turn has them.
  /// Throws UsageError for integers with which C would not be exact: k must be a multiple of 32; of
  /// bf16 at most 8192, of fp8 16384.
  virtual void fill(Operands operands, std::uint64_t seed, const Turn& turn, Stream& stream) = 0;
  void fill(Operands operands, std::uint64_t seed, Stream& stream) {
    fill(operands, seed, Turn(), stream);
  }
  /// Adds to wrong[0] and wrong[1], in device memory, the elements of A and B in memory that are
  /// not what fill() writes.
  virtual void compare(Operands operands, std::uint64_t seed, const Turn& turn, WordErrors* wrong,
                       Stream& stream) = 0;
  virtual void run(Stream& stream) = 0;
  /// From now on C begins this many of its rows later in its buffer: kTileEdge at most.
  virtual void move_result(std::int64_t rows) = 0;

  virtual View a() = 0;
  virtual View b() = 0;
  virtual View c() = 0;
};

/// C, `row` of its rows after the begin of a buffer that has kTileEdge rows more.
View result_in(const Buffer& buffer, const ProductSpec& spec, std::int64_t row);
inline std::int64_t elements_of_result(const ProductSpec& spec) {
  return (spec.m + kTileEdge) * spec.n;
}

/// The value of element `index` (row-major) of A (matrix 0) or B (matrix 1): what fill() writes,
/// for recomputing an element on the host.
double operand_value(ProductType type, Operands operands, std::uint64_t seed, int matrix,
                     std::uint64_t index);

/// Of the product of these operands; columns of C move in groups of 16 bytes.
Turn turn_of(const ProductSpec& spec, std::uint64_t seed, std::uint32_t number);

/// 2 m n k.
double flop_of(const ProductSpec& spec);

/// "algorithm 66 tile 20 ..." of Product::algorithm(): what another version of the library may have
/// too.
std::string without_library(const std::string& algorithm);

/// A product of about 8192 x 8192 x 8192 whose tiles of 128 x 256 fill `sms` SMs a whole number of
/// times: then one SM that is slow or lost costs a share of a wave. On H100 and H200 (132 SMs)
/// 8192 x 8448 x 8192: 2,112 tiles, 97.7 % of peak in bf16 where 8192 x 8192 x 8192 has 92.4 %. fp8
/// has the other order, and int8 8192 x 8192 x 8192: their cycles differ less from run to run then.
ProductSpec whole_waves(ProductType type, int sms);

namespace cpu {
std::vector<ProductType> product_types();
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm);
}  // namespace cpu
namespace gpu {
/// Those that this GPU has: fp8 from compute capability 8.9 on.
std::vector<ProductType> product_types();
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm);
}  // namespace gpu

/// By the device's backend. `algorithm`: what algorithm() of another product of this spec has
/// returned, to repeat it; empty: the library's first choice, which is the same on all GPUs of a
/// model. Throws UsageError where the library has no such algorithm.
std::vector<ProductType> product_types(const Device& device);
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm = "");

struct TypeChoice {
  std::vector<ProductType> types;  // that every rank's device has
  std::string remark;              // on those of all that a device lacks; empty: none
};
/// Of `requested` ("all", or none: all), where the ranks' devices have these. Throws UsageError
/// naming one that was given by name and that a device lacks.
TypeChoice choose_types(const std::vector<std::string>& requested,
                        const std::vector<std::vector<ProductType>>& by_rank);
/// Collective.
TypeChoice choose_types(const std::vector<std::string>& requested, const Device& device,
                        const MpiSession& session);

// The values of a product's operands: a function of type, kind, seed, matrix and index alone,
// shared by both backends' kernels and the host.

/// One of the two matrices of a product.
struct OperandRule {
  DataType type = DataType::float32;
  Operands kind = Operands::integers;
  int matrix = 0;          // 0: A, 1: B
  std::uint64_t seed = 0;  // of this matrix
};

inline OperandRule operand_rule(ProductType type, Operands kind, std::uint64_t seed, int matrix) {
  const std::uint64_t own = seed * 2 + static_cast<std::uint64_t>(matrix);
  return {operand_type(type), kind, matrix, number_format::hash(own, 0)};
}

namespace operands {

// Integers: with d = +-1 at one pair of elements in each block of B, 0 at the others, and v and w
// random in [-15, 15] and [-14, 14], the elements k and k + 16 of a row (index bit 4) are v and -v
// in A, w and w + d in B. Each pair adds -v d to an element of C, though all factors are dense and
// of four bits. So
//   - any partial sum is below 15 * 15 * k <= 2^24 for k <= 74,565: exact in fp32, in any order;
//   - the accumulator of Hopper's fp8 instructions keeps at least 13 bits below the highest bit of
//     a sum's largest term: exact, as sums of 32 products are below 2^13 and whole pairs are added;
//   - |C| <= 15 (k / block + 1), which is at most 256 for k <= 16 blocks: C is exact in bfloat16
//     too.
inline constexpr std::uint64_t kPartner = 16;

/// A block has 2^this elements of B: in fp8, whose products have a larger k, twice as many.
SHAKEDOWN_HOST_DEVICE inline int block_bits(DataType type) {
  return type == DataType::float8_e4m3 ? 10 : 9;
}

SHAKEDOWN_HOST_DEVICE inline int integer(const OperandRule& rule, std::uint64_t index) {
  const bool second = (index & kPartner) != 0;
  const std::uint64_t h = number_format::hash(rule.seed, index & ~kPartner);
  if (rule.matrix == 0) {
    const int v = static_cast<int>(h % 31) - 15;
    return second ? -v : v;
  }
  const int w = static_cast<int>(h % 29) - 14;
  if (!second) return w;
  const int bits = block_bits(rule.type);
  const std::uint64_t block_hash = number_format::hash(rule.seed, ~(index >> bits));
  const std::uint64_t in_block = number_format::low_bits(index, bits);
  const std::uint64_t pair = in_block / (2 * kPartner) * kPartner + index % kPartner;
  if (number_format::low_bits(block_hash, bits - 1) != pair) return w;
  return w + ((block_hash >> 32 & 1U) != 0 ? 1 : -1);
}

/// The sum of four uniform numbers: bell-shaped, of standard deviation 2 / sqrt(3), below 4, with
/// all 53 bits of the significand random. Exact until the one rounding to double.
SHAKEDOWN_HOST_DEVICE inline double normal_like(const OperandRule& rule, std::uint64_t index) {
  const std::uint64_t h = number_format::hash(rule.seed, index);
  const auto sum = static_cast<std::int64_t>((h & 0xFFFFU) + (h >> 16 & 0xFFFFU) +
                                             (h >> 32 & 0xFFFFU) + (h >> 48)) -
                   131070;
  const auto low = static_cast<std::int64_t>(number_format::mix(h) >> 20);
  return static_cast<double>(sum * (std::int64_t{1} << 44) + low) * 0x1p-59;
}

}  // namespace operands

/// The bits of an element. Full-entropy int8 has a standard deviation of 30.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t operand_bits(const OperandRule& rule,
                                                        std::uint64_t index) {
  const number_format::Format format = number_format::format_of(rule.type);
  const double value = rule.kind == Operands::integers ? operands::integer(rule, index)
                                                       : operands::normal_like(rule, index);
  if (format.exponent > 0) return number_format::encode(format, value);
  const auto whole =
      static_cast<std::int64_t>(rule.kind == Operands::integers ? value : 26 * value);
  return number_format::low_bits(static_cast<std::uint64_t>(whole), format.width);
}

/// Whether C is exact for operands of integers: k a multiple of 32, and small enough for its type.
/// Throws UsageError where it is not.
void check_exact(const ProductSpec& spec);

// Sums of the rows and columns of matrices, exact in 64-bit integers: of operands by their formula,
// of C as it lies in memory.

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
