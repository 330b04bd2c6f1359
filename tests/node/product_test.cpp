// Products of every type of every backend: operands as the host knows them, integers exact.
#include "launch/node/compute/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/numbers.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kSeed = 7;

struct Rig {
  explicit Rig(BackendKind kind) : device(test::open_device(kind)), stream(device->make_stream()) {}

  std::vector<double> numbers(View x) const {
    const auto bytes = download<std::uint8_t>(*device, *stream, x.data, x.bytes());
    const std::size_t width = size_of(x.type);
    std::vector<double> values;
    for (std::size_t i = 0; i < x.count; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * width, width);
      values.push_back(number_format::decode(number_format::format_of(x.type), bits));
    }
    return values;
  }
  std::unique_ptr<Product> product(const ProductSpec& spec, const std::string& algorithm = "") {
    return make_product(spec, *device, *stream, algorithm);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

std::vector<double> operand(const ProductSpec& spec, Operands operands, int matrix) {
  std::vector<double> values;
  const auto count = static_cast<std::uint64_t>((matrix == 0 ? spec.m : spec.n) * spec.k);
  for (std::uint64_t i = 0; i < count; ++i)
    values.push_back(operand_value(spec.type, operands, kSeed, matrix, i));
  return values;
}

/// In double, in which it is exact for integers.
std::vector<double> naive(const ProductSpec& spec, Operands operands) {
  const std::vector<double> a = operand(spec, operands, 0);
  const std::vector<double> b = operand(spec, operands, 1);
  std::vector<double> c;
  const auto k = static_cast<std::size_t>(spec.k);
  for (std::size_t i = 0; i < static_cast<std::size_t>(spec.m); ++i)
    for (std::size_t j = 0; j < static_cast<std::size_t>(spec.n); ++j) {
      double sum = 0;
      for (std::size_t l = 0; l < k; ++l) sum += a[i * k + l] * b[j * k + l];
      c.push_back(sum);
    }
  return c;
}

}  // namespace

TEST_CASE("decode is the conversion of the halves, and ldexp of e4m3", "[product]") {
  using number_format::decode;
  using number_format::format_of;
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float half = float16_to_float(static_cast<std::uint16_t>(bits));
    const float brain = bfloat16_to_float(static_cast<std::uint16_t>(bits));
    if (std::isfinite(half) && decode(format_of(DataType::float16), bits) != half) ++wrong;
    if (std::isfinite(brain) && decode(format_of(DataType::bfloat16), bits) != brain) ++wrong;
  }
  CHECK(wrong == 0);
  CHECK(decode(format_of(DataType::float8_e4m3), 0x01) == 0x1p-9);
  CHECK(decode(format_of(DataType::float8_e4m3), 0xB9) == -1.125);
  CHECK(decode(format_of(DataType::int8), 0xFF) == -1);
}

TEST_CASE("products are right and repeat to the bit", "[product]") {
  Rig rig(GENERATE(from_range(test::backends())));
  const std::vector<ProductType> types = product_types(*rig.device);
  CHECK(std::find(types.begin(), types.end(), ProductType::fp32) != types.end());
  for (const ProductType type : types) {
    const ProductSpec spec{type, 96, 64, 1024};
    CAPTURE(name_of(rig.device->kind()), name_of(type));
    const auto product = rig.product(spec);
    INFO(product->algorithm());
    for (const Operands operands : {Operands::integers, Operands::full_entropy}) {
      product->fill(operands, kSeed, *rig.stream);
      CHECK(rig.numbers(product->a()) == operand(spec, operands, 0));
      CHECK(rig.numbers(product->b()) == operand(spec, operands, 1));
      product->run(*rig.stream);
      const std::vector<double> c = rig.numbers(product->c());
      const std::vector<double> expected = naive(spec, operands);
      if (operands == Operands::integers)
        CHECK(c == expected);
      else  // the rounding of bfloat16
        CHECK(test::relative_error(c, expected) < 4e-3);
      rig.device->zero(product->c().data, product->c().bytes(), *rig.stream);
      product->run(*rig.stream);
      CHECK(rig.numbers(product->c()) == c);
    }
    const auto again = rig.product(spec, product->algorithm());
    CHECK(again->algorithm() == product->algorithm());
    CHECK_THROWS_AS(rig.product(spec, "no algorithm"), UsageError);
  }
}

TEST_CASE("operands of integers are dense, small, and give a C that its type holds", "[product]") {
  const ProductSpec spec = GENERATE(ProductSpec{ProductType::bf16, 24, 24, 8192},
                                    ProductSpec{ProductType::fp8, 24, 24, 16384});
  const std::vector<double> b = operand(spec, Operands::integers, 1);
  const auto zeros = std::count(b.begin(), b.end(), 0.0);
  CHECK(zeros < static_cast<long>(b.size() / 20));
  CHECK(*std::min_element(b.begin(), b.end()) == -15);
  CHECK(*std::max_element(b.begin(), b.end()) == 15);
  const std::vector<double> c = naive(spec, Operands::integers);
  CHECK(std::count(c.begin(), c.end(), 0.0) < static_cast<long>(c.size() / 10));
  for (const double x : c) CHECK(std::fabs(x) <= 256);
  check_exact(spec);
  CHECK_THROWS_AS(check_exact({spec.type, 8, 8, spec.k + 32}), UsageError);
  CHECK_THROWS_AS(check_exact({ProductType::fp32, 8, 8, 48}), UsageError);
}

TEST_CASE("full-entropy operands are bell-shaped and use every bit", "[product]") {
  double squares = 0;
  std::uint64_t ones = 0;
  std::uint64_t all = ~std::uint64_t{0};
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double x = operand_value(ProductType::fp64, Operands::full_entropy, kSeed, 0,
                                   static_cast<std::uint64_t>(i));
    squares += x * x;
    const std::uint64_t bits =
        number_format::encode(number_format::format_of(DataType::float64), x);
    ones |= bits;
    all &= bits;
    CHECK(std::fabs(x) < 4.1);
  }
  CHECK(std::fabs(std::sqrt(squares / kCount) - 1.1547) < 0.02);
  const std::uint64_t significand = (std::uint64_t{1} << 52) - 1;
  CHECK((ones & significand) == significand);
  CHECK((all & significand) == 0);
  CHECK(operand_value(ProductType::fp64, Operands::full_entropy, kSeed, 0, 5) !=
        operand_value(ProductType::fp64, Operands::full_entropy, kSeed, 1, 5));
}

TEST_CASE("products of whole waves of tiles, for any number of SMs", "[product]") {
  const auto shape = [](ProductType type, int sms) {
    const ProductSpec spec = whole_waves(type, sms);
    return std::vector<std::int64_t>{spec.m, spec.n, spec.k};
  };
  using Shape = std::vector<std::int64_t>;
  CHECK(shape(ProductType::bf16, 132) == Shape{8192, 8448, 8192});  // H100, H200
  CHECK(shape(ProductType::fp8, 132) == Shape{8448, 8192, 8192});
  CHECK(shape(ProductType::int8, 132) == Shape{8192, 8192, 8192});
  CHECK(shape(ProductType::fp64, 114) == Shape{8192, 7296, 8192});  // H100 PCIe
  for (const int sms : {108, 114, 132, 142, 148, 152, 160, 188, 78, 72, 56, 46, 7, 1}) {
    const ProductSpec spec = whole_waves(ProductType::tf32, sms);
    INFO(sms << " SMs, n = " << spec.n);
    CHECK(spec.m / 256 * (spec.n / 128) % sms == 0);
    CHECK(spec.n >= 4096);
    CHECK(spec.n <= 12288);
  }
}

TEST_CASE("an algorithm without the library's version", "[product]") {
  CHECK(without_library("cublasLt 130100 algorithm 66 tile 20") == "algorithm 66 tile 20");
  CHECK(without_library("oneDNN 3.5.0 brg:avx512") == "brg:avx512");
}

}  // namespace shakedown::node
