#include "launch/node/compute/product.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "common/error.hpp"
#include "launch/node/compute/operands.hpp"

namespace shakedown::node {
namespace {

struct Types {
  const char* name;
  DataType operand, result;
  std::int64_t exact_k;  // for integers, see operands.hpp
};

const Types& types_of(ProductType type) {
  constexpr std::int64_t kAny = 65536;
  static constexpr Types kTypes[] = {{"fp64", DataType::float64, DataType::float64, kAny},
                                     {"fp32", DataType::float32, DataType::float32, kAny},
                                     {"tf32", DataType::float32, DataType::float32, kAny},
                                     {"fp16", DataType::float16, DataType::float16, kAny},
                                     {"bf16", DataType::bfloat16, DataType::bfloat16, 8192},
                                     {"fp8", DataType::float8_e4m3, DataType::bfloat16, 16384},
                                     {"int8", DataType::int8, DataType::int32, kAny}};
  return kTypes[static_cast<int>(type)];
}

}  // namespace

std::vector<ProductType> all_product_types() {
  return {ProductType::fp64, ProductType::fp32, ProductType::tf32, ProductType::fp16,
          ProductType::bf16, ProductType::fp8,  ProductType::int8};
}
const char* name_of(ProductType type) { return types_of(type).name; }
DataType operand_type(ProductType type) { return types_of(type).operand; }
DataType result_type(ProductType type) { return types_of(type).result; }

double operand_value(ProductType type, Operands operands, std::uint64_t seed, int matrix,
                     std::uint64_t index) {
  const OperandRule rule = operand_rule(type, operands, seed, matrix);
  return number_format::decode(number_format::format_of(rule.type), operand_bits(rule, index));
}

double flop_of(const ProductSpec& spec) {
  return 2.0 * static_cast<double>(spec.m) * static_cast<double>(spec.n) *
         static_cast<double>(spec.k);
}

std::size_t preferred(const std::vector<double>& times) {
  constexpr double kNoise = 0.03;  // at the power limit: at 0.005 three runs made three choices
  const auto best = std::min_element(times.begin(), times.end());
  return times.front() * (1 - kNoise) <= *best ? 0 : static_cast<std::size_t>(best - times.begin());
}

void check_exact(const ProductSpec& spec) {
  const std::int64_t most = types_of(spec.type).exact_k;
  if (spec.k % 32 != 0 || spec.k > most)
    throw UsageError(
        fmt::format("{} products of integers with k = {}: exact only for multiples of 32 up to {}",
                    name_of(spec.type), spec.k, most));
}

std::vector<ProductType> product_types(const Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::product_types() : cpu::product_types();
}

std::unique_ptr<Product> make_product(const ProductSpec& spec, Device& device, Stream& stream,
                                      const std::string& algorithm) {
  return device.kind() == BackendKind::gpu ? gpu::make_product(spec, device, stream, algorithm)
                                           : cpu::make_product(spec, device, stream, algorithm);
}

}  // namespace shakedown::node
