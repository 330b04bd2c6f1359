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
  virtual View b() = 0;  // or its transpose [k, n], where the library is faster with it
  virtual View c() = 0;
};

/// The value of element `index` (row-major) of A (matrix 0) or B (matrix 1): what fill() writes,
/// for recomputing an element on the host.
double operand_value(ProductType type, Operands operands, std::uint64_t seed, int matrix,
                     std::uint64_t index);

/// 2 m n k.
double flop_of(const ProductSpec& spec);

/// Of algorithms by their times, the library's first choice first: that one, unless another is
/// faster by more than noise, 3 %.
std::size_t preferred(const std::vector<double>& times);

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
/// returned, to repeat it, or to have the same on several GPUs; empty: the fastest of the library's
/// candidates, measured here. Throws UsageError where the library has no such algorithm.
std::vector<ProductType> product_types(const Device& device);
std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm = "");

}  // namespace shakedown::node
