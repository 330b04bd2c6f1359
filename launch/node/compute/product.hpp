// Matrix products by the vendor's library, with one algorithm, on operands that every GPU makes
// alike from a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/device.hpp"

namespace shakedown::node {

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

  /// A and B = values of (operands, seed, index) alone. Throws UsageError for integers with which
  /// C would not be exact: k must be a multiple of 32; of bf16 at most 8192, of fp8 16384.
  virtual void fill(Operands operands, std::uint64_t seed, Stream& stream) = 0;
  virtual void run(Stream& stream) = 0;

  virtual View a() = 0;
  virtual View b() = 0;
  virtual View c() = 0;
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

}  // namespace shakedown::node
