// Sums over rows in parts, of which norms through the Gram matrix are made. Their units are
// compared with the unfused in tests/resnet/fused_reduction_test.cpp, each kernel with what it
// replaces by tests/kernels.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "resnet/gpu/convolution.hpp"
#include "resnet/gpu/unit_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/resnet/gpu/kernel_rig.hpp"

namespace shakedown {
namespace {

using test::floats_of;
using test::positive_values;
using test::random_values;
using test::relative_error;
using test::rounding;
using test::Tensor;
using test::Values;

using Rig = test::KernelRig;

/// Where the hardware has accumulator i of a warpgroup's thread in a product of 64 rows (PTX ISA,
/// wgmma's D fragment): its row, and its column as the product has them.
unsigned hardware_row(unsigned thread, unsigned i) {
  return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
unsigned hardware_column(unsigned thread, unsigned i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

}  // namespace

TEST_CASE("a sum over rows is cut into equal parts, none of them long", "[gram]") {
  for (const std::size_t rows : {10907008U, 802816U, 200704U, 50176U, 12544U, 780U, 75U, 7U, 1U}) {
    CAPTURE(rows);
    const int parts = gpu::gram_parts(rows, 128);
    REQUIRE(parts > 0);
    CHECK(rows % static_cast<std::size_t>(parts) == 0);
    CHECK(rows / static_cast<std::size_t>(parts) <= 6272);
  }
  CHECK(gpu::gram_parts(802816, 128) == 128);
  CHECK(gpu::gram_parts(200704, 32) == 32);
  CHECK(gpu::gram_parts(75, 128) == 1);
  CHECK(gpu::gram_parts(1000003, 128) == 0);  // a prime
  CHECK(gpu::gram_parts_of_d(802816, 64) == 64);
  CHECK(gpu::gram_parts_of_d(200704, 128) == 32);
  CHECK(gpu::gram_parts_of_d(50176, 256) == 8);
  CHECK(gpu::gram_parts_of_d(1605632, 64) == 128);  // none longer than 12,544 rows
  CHECK(gpu::gram_parts_of_d(75, 64) == 1);
  CHECK(gpu::gram_parts_of_g(200704, 128) == 128);
  CHECK(gpu::gram_parts_of_g(50176, 256) == 32);
}

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;

/// Of the numbers; a NaN is at the same places in both.
double error_of_numbers(Values values, Values expected) {
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::isnan(values[i]) != std::isnan(expected[i])) return INFINITY;
    if (std::isnan(expected[i])) values[i] = expected[i] = 0;
  }
  return relative_error(values, expected);
}

}  // namespace

GPU_TEST_CASE("sums of parts match float64, and a NaN stays in its column", "[gram][kernels]") {
  const int count = GENERATE(1, 31, 33, 129, 396);
  const std::size_t size = GENERATE(64U, 4128U);
  CAPTURE(count, size);
  Rig rig;
  std::vector<float> parts = random_values(static_cast<std::size_t>(count) * size, 1);
  Values expected(size, 0.0);
  for (std::size_t i = 0; i < parts.size(); ++i) expected[i % size] += parts[i];
  parts[parts.size() - 2] = std::nanf("");
  expected[size - 2] = std::nan("");
  CHECK(error_of_numbers(rig.totals(rig.of(parts), count, size), expected) < 1e-6);
}

GPU_TEST_CASE("D of parts as long as they may be matches float64", "[gram][kernels]") {
  const DataType type = GENERATE(DataType::float16, DataType::bfloat16);
  CAPTURE(name_of(type));
  constexpr std::size_t kRows = 2 * 12544;
  constexpr std::size_t kChannels = 64, kFilters = 256;
  Rig rig;
  const Tensor y = rig.rounded(type, positive_values(kRows * kChannels));
  const Tensor g = rig.rounded(type, random_values(kRows * kFilters, 2, -1, 1.2));
  gpu::BlasHandle blas(*rig.device, rig.native());
  const gpu::PartedProduct product(blas, {kRows, 2, kFilters, kChannels, type}, kWorkspace);
  REQUIRE(product.algorithms() > 0);
  const Buffer parts = rig.floats(2 * kFilters * kChannels);
  const Buffer workspace(*rig.device, kWorkspace);
  product.run(0, g.data(), y.data(), floats_of(parts), workspace.data(), rig.native());
  const Values made = rig.totals(parts, 2, kFilters * kChannels);
  Values some, expected;
  for (std::size_t k = 0; k < kFilters; k += 51)
    for (std::size_t j = 0; j < kChannels; ++j) {
      double sum = 0;
      for (std::size_t row = 0; row < kRows; ++row)
        sum += g.values[row * kFilters + k] * y.values[row * kChannels + j];
      some.push_back(made[k * kChannels + j]);
      expected.push_back(sum);
    }
  CHECK(relative_error(some, expected) < 2e-4);  // what dw is rounded by
}

// Where the threads of a product on wgmma find their rows and columns.

TEST_CASE("a thread's adjacent columns are those it has accumulators of", "[gram]") {
  const unsigned columns = GENERATE(64U, 128U);
  std::map<std::pair<unsigned, unsigned>, int> seen;  // row and column
  for (unsigned thread = 0; thread < 128; ++thread)
    for (unsigned q = 0; q < columns / 32; ++q)
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned v = 0; v < 8; ++v) {
          const unsigned row = gpu::fragment_row(thread, half);
          const unsigned column = q * 32 + gpu::fragment_column(thread) + v;
          const unsigned i = gpu::accumulator_of(q, half, v);
          REQUIRE(i < columns / 2);
          REQUIRE(hardware_row(thread, i) == row);
          REQUIRE(hardware_column(thread, i) == gpu::placed_column(column));
          ++seen[{row, column}];
        }
  CHECK(seen.size() == std::size_t{64} * columns);  // each once: there are as many accumulators
}

}  // namespace shakedown
