// Matrix products by the vendor's library, with one algorithm, on operands that every GPU makes
// alike from a seed.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "common/usage_error.hpp"

namespace shakedown {
class MpiSession;
}

namespace shakedown::node {

/// What is multiplied, and in what is accumulated: int32 for int8, fp32 for tf32, fp16, bf16 and
/// what is narrower. The result C has float64, float32 (fp32, tf32), float16, int32, or bfloat16
/// (bf16, fp8, mxfp8, nvfp4). mxfp8 and nvfp4 are e4m3 and e2m1 with scale factors, all of them 1
/// here; no Blackwell GPU, which alone has them, has run these yet.
enum class ProductType { fp64, fp32, tf32, fp16, bf16, fp8, int8, mxfp8, nvfp4 };
std::vector<ProductType> all_product_types();
/// Of these, those that bin/soak multiplies.
std::vector<ProductType> soaked(std::vector<ProductType> types);
const char* name_of(ProductType type);    // "bf16"
DataType operand_type(ProductType type);  // as it lies in memory: nvfp4 has two elements in a uint8
DataType result_type(ProductType type);
number_format::Format operand_format(ProductType type);  // of an element
/// Elements along k that share a scale factor; 0: there are none.
int scale_block(ProductType type);

enum class Operands {
  integers,      // small ones, for which every sum is exact in any order, and so is C
  full_entropy,  // all bits of the significand in use, magnitudes as of normal data
  // What excites some circuits more than random bits do; of int8 the last two are as carries, of
  // nvfp4 denormals.
  low_toggle,   // 256 equal elements after one another along k
  high_toggle,  // neighbours along k differ in their sign and in each bit of the significand
  carries,      // near +-1 and +-2, a step off: sums whose carries run far
  denormals,    // A is subnormal, B as much larger than 1
  ties,         // multiples of a coarse step: sums half-way between two results
};
std::vector<Operands> all_operands();
const char* name_of(Operands operands);  // "high_toggle"

/// C[m, n] = A[m, k] B[n, k]^T, all row-major.
struct ProductSpec {
  ProductType type = ProductType::bf16;
  std::int64_t m = 8192, n = 8192, k = 8192;
};

/// Of the scale factors of A or of B, whichever has more rows: a byte each, in cuBLASLt's tiles of
/// 128 rows and 4 factors along k.
std::size_t scale_bytes(const ProductSpec& spec);

// Turns of a product: the same product with the rows of A and the rows of B in another order. C has
// the same elements in other places, each of them the same sum in the same order: the same to the
// bit, and computed by another SM, warp and lane.

/// Rows and columns of a tile of C.
inline constexpr int kTileEdge = 128;
/// Tiles in a row or column of a C that can be turned.
inline constexpr int kMostTiles = 64;

/// An order of lines, the rows or the columns of C: tiles of lines move as a whole, lines within
/// their tile. Place 0 is the launch's first line, wherever that comes from.
struct LineOrder {
  bool moved = false;                   // else each line is at its own place
  std::uint8_t tiles[kMostTiles] = {};  // by place: the tile that is there
  std::uint8_t lines[kTileEdge] = {};   // by place within a tile: the line of the tile

  SHAKEDOWN_HOST_DEVICE std::int64_t tile(std::int64_t place) const {
    return moved ? tiles[place] : place;
  }
  SHAKEDOWN_HOST_DEVICE int line(int place) const { return moved ? lines[place] : place; }
  /// The line that is at a place of the whole.
  SHAKEDOWN_HOST_DEVICE std::int64_t original(std::int64_t place) const {
    return moved ? std::int64_t{tiles[place / kTileEdge]} * kTileEdge + lines[place % kTileEdge]
                 : place;
  }
  /// Where a tile is.
  std::int64_t place_of_tile(std::int64_t tile) const;
};

/// Columns move in groups of 16 bytes of C.
struct Turn {
  LineOrder rows, columns;
};

/// Number 0 moves nothing; any other is drawn from the seed and needs m and n of whole tiles,
/// kMostTiles at most.
Turn turn_of(const ProductSpec& spec, std::uint64_t seed, std::uint32_t number);

/// What a product is of: A and B, and where it has their rows.
struct Draw {
  Operands operands = Operands::full_entropy;
  std::uint64_t seed = 0;
  std::uint32_t turn = 0;
};

class ComputeKernels;
struct OperandRule;
struct WordErrors;

/// A library's product of one spec, with A, B and C in memory of the device.
class Product {
 public:
  virtual ~Product() = default;
  const ProductSpec& spec() const { return spec_; }
  /// The library, its version and the algorithm's number: with the same text and the same model of
  /// GPU the bits of C are the same.
  virtual std::string algorithm() const = 0;
  /// What the library offers for this product, its first choice first. It may not run them all.
  virtual std::vector<std::string> algorithms() const = 0;
  virtual void run(Stream& stream) = 0;

  /// A and B = values of the draw's operands and seed and of the index alone, with their rows where
  /// the turn has them. Throws UsageError for integers with which C would not be exact: k must be a
  /// multiple of 32; of bf16 at most 8192, of fp8, mxfp8 and nvfp4 16384.
  void fill(const Draw& draw, Stream& stream);
  const Draw& draw() const { return draw_; }
  OperandRule rule_of(int matrix) const;  // of the draw; 0: A, 1: B
  const Turn& turn() const { return turn_; }
  /// Adds to wrong[0] and wrong[1], in device memory, the elements of A and B in memory (of nvfp4
  /// pairs of them) that are not what fill() writes.
  void compare(WordErrors* wrong, Stream& stream);
  /// From now on C begins this many of its rows later in its buffer: kTileEdge at most.
  void move_result(std::int64_t rows);

  View a() const { return a_.view(operand_type(spec_.type)); }
  View b() const { return b_.view(operand_type(spec_.type)); }
  View c() const;

 protected:
  Product(const ProductSpec& spec, Device& device);

 private:
  ProductSpec spec_;
  std::shared_ptr<const ComputeKernels> kernels_;
  Buffer a_, b_, c_;
  Draw draw_;
  Turn turn_;
  std::int64_t c_row_ = 0;
};

/// The value of element `index` (row-major) of A (matrix 0) or B (matrix 1): what fill() writes,
/// for recomputing an element on the host.
double operand_value(ProductType type, Operands operands, std::uint64_t seed, int matrix,
                     std::uint64_t index);

/// 2 m n k.
double flop_of(const ProductSpec& spec);

/// "algorithm 66 tile 20 ..." of Product::algorithm(): what another version of the library may have
/// too.
std::string without_library(const std::string& algorithm);

/// A product of about 8192 x 8192 x 8192 whose tiles of 128 x 256 fill `sms` SMs a whole number of
/// times: then one SM that is slow or lost costs a share of a wave. On H100 and H200 (132 SMs)
/// 8192 x 8448 x 8192: 2,112 tiles, 97.7 % of peak in bf16 where 8192 x 8192 x 8192 has 92.4 %. fp8
/// has the other order, and int8 8192 x 8192 x 8192: their cycles differ less from run to run then.
/// fp64 2048 x 2048 x 2048 where it has a 64th of fp32's rate (L40S 8.9, B300 10.3): the larger
/// product would take a second.
ProductSpec whole_waves(ProductType type, int sms, const std::string& compute_capability);

namespace cpu {
std::vector<ProductType> product_types();
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm);
}  // namespace cpu
namespace gpu {
/// Those that this GPU has: fp8 from compute capability 8.9 on; mxfp8 and nvfp4 from 10.0 on, with
/// cuBLAS of CUDA 12.8 or later.
std::vector<ProductType> product_types();
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm);
}  // namespace gpu

/// The library has no such block-scaled product for this device.
struct NotSupported : UsageError {
  using UsageError::UsageError;
};

/// By the device's backend. `algorithm`: what algorithm() of another product of this spec has
/// returned, to repeat it; empty: the library's first choice, which is the same on all GPUs of a
/// model. Throws UsageError where the library has no such algorithm, NotSupported where it has no
/// block-scaled product.
std::vector<ProductType> product_types(const Device& device);
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm = "");

struct TypeChoice {
  std::vector<ProductType> types;  // that every rank's device has
  std::string remark;              // on those of all that a device lacks; empty: none
};
/// Of `requested` ("all", or none: all of `types`), where the ranks' devices have these. Throws
/// UsageError naming one that `option` has by name and that a device lacks.
TypeChoice choose_types(const std::vector<ProductType>& types,
                        const std::vector<std::string>& requested,
                        const std::vector<std::vector<ProductType>>& by_rank,
                        const std::string& option = "--types");
/// Collective.
TypeChoice choose_types(const std::vector<ProductType>& types,
                        const std::vector<std::string>& requested, const Device& device,
                        const MpiSession& session, const std::string& option = "--types");

// The values of a product's operands: a function of type, kind, seed, matrix and index alone,
// shared by both backends' kernels and the host.

/// One of the two matrices of a product.
struct OperandRule {
  number_format::Format format = {};
  Operands kind = Operands::integers;
  int matrix = 0;          // 0: A, 1: B
  std::uint64_t seed = 0;  // of this matrix
};

inline OperandRule operand_rule(ProductType type, Operands kind, std::uint64_t seed, int matrix) {
  const std::uint64_t own = seed * 2 + static_cast<std::uint64_t>(matrix);
  return {operand_format(type), kind, matrix, number_format::hash(own, 0)};
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
// In e2m1, which has no odd numbers above 3, v is in [-4, 4] and w in [-3, 3]: all bounds are
// lower.
inline constexpr std::uint64_t kPartner = 16;

/// A block has 2^this elements of B: in e4m3 and e2m1, whose products have a larger k, twice as
/// many.
SHAKEDOWN_HOST_DEVICE inline int block_bits(number_format::Format format) {
  return format.width <= 8 && format.exponent > 0 ? 10 : 9;
}

SHAKEDOWN_HOST_DEVICE inline int integer(const OperandRule& rule, std::uint64_t index) {
  const bool second = (index & kPartner) != 0;
  const std::uint64_t h = number_format::hash(rule.seed, index & ~kPartner);
  const bool narrow = rule.format.width == 4;
  if (rule.matrix == 0) {
    const int v = narrow ? static_cast<int>(h % 9) - 4 : static_cast<int>(h % 31) - 15;
    return second ? -v : v;
  }
  const int w = narrow ? static_cast<int>(h % 7) - 3 : static_cast<int>(h % 29) - 14;
  if (!second) return w;
  const int bits = block_bits(rule.format);
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

namespace operands {

/// Of full entropy; int8 with a standard deviation of 30, e2m1 up to 6, its largest number.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t random_bits(const OperandRule& rule,
                                                       std::uint64_t index) {
  const number_format::Format format = rule.format;
  const double value = normal_like(rule, index) * (format.width == 4 ? 1.5 : 1);
  if (format.exponent > 0) return number_format::encode(format, value);
  return number_format::low_bits(static_cast<std::uint64_t>(static_cast<std::int64_t>(26 * value)),
                                 format.width);
}

SHAKEDOWN_HOST_DEVICE inline std::uint64_t carry_bits(const number_format::Format& format,
                                                      std::uint64_t h) {
  const std::uint64_t ones = number_format::low_bits(~std::uint64_t{0}, format.mantissa);
  const std::uint64_t step = (h & 1U) != 0 ? ones : 1;
  if (format.exponent == 0)  // 127, -128, 1, -2
    return (h & 2U) != 0 ? number_format::low_bits(~step, format.width) : step;
  return (h >> 1 & 1U) << (format.width - 1) | number_format::bits_of_one(format) | step;
}

/// Steps of 2^-bits: sums of 8192 products are multiples of half a step of C, or of less.
SHAKEDOWN_HOST_DEVICE inline double coarse(double value, int bits) {
  const auto scale = static_cast<double>(std::int64_t{1} << bits);
  return rint(value * scale) / scale;
}

}  // namespace operands

/// The bits of an element.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t operand_bits(const OperandRule& rule,
                                                        std::uint64_t index) {
  const number_format::Format format = rule.format;
  const std::uint64_t h = number_format::hash(rule.seed, index);
  const bool whole = format.exponent == 0;
  switch (rule.kind) {
    case Operands::integers:
      if (!whole) return number_format::encode(format, operands::integer(rule, index));
      return number_format::low_bits(static_cast<std::uint64_t>(operands::integer(rule, index)),
                                     format.width);
    case Operands::full_entropy: return operands::random_bits(rule, index);
    case Operands::low_toggle: return operands::random_bits(rule, index >> 8);
    case Operands::high_toggle: {
      const std::uint64_t toggled =
          (index & 1U) == 0 ? 0
                            : std::uint64_t{1} << (format.width - 1) |
                                  number_format::low_bits(~std::uint64_t{0}, format.mantissa);
      return operands::random_bits(rule, index & ~std::uint64_t{1}) ^ toggled;
    }
    case Operands::carries: break;
    case Operands::denormals: {
      if (whole || format.width == 4) break;
      if (rule.matrix == 0)
        return (h & 1U) << (format.width - 1) | number_format::low_bits(h >> 1, format.mantissa);
      const int half_bias = (1 << (format.exponent - 1)) / 2;
      return operands::random_bits(rule, index) +
             (static_cast<std::uint64_t>(half_bias) << format.mantissa);
    }
    case Operands::ties: {
      if (whole) break;
      const int bits = format.mantissa < 6 ? 1 : (format.mantissa - 4) / 2;
      return number_format::encode(format,
                                   operands::coarse(operands::normal_like(rule, index), bits));
    }
  }
  return operands::carry_bits(format, h);
}

/// A word of an operand in memory: an element, or two of four bits, the first in the low ones.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t operand_word(const OperandRule& rule,
                                                        std::uint64_t index) {
  if (rule.format.width != 4) return operand_bits(rule, index);
  return operand_bits(rule, 2 * index) | operand_bits(rule, 2 * index + 1) << 4;
}

/// Whether C is exact for operands of integers: k a multiple of 32, and small enough for its type.
/// Throws UsageError where it is not.
void check_exact(const ProductSpec& spec);

}  // namespace shakedown::node
