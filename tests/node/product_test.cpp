// Products of every type of every backend: operands as the host knows them, integers exact.
#include "launch/node/compute/product.hpp"
#include "common/usage_error.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "common/numbers.hpp"
#include "common/program.hpp"
#include "launch/node/compute/kernels.hpp"
#include "launch/node/compute/rates.hpp"
#include "launch/node/compute/verify.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {
namespace {

constexpr std::uint64_t kSeed = 7;

/// One after the other, without gaps between those of four bits.
std::vector<double> numbers_in(std::span<const std::uint8_t> bytes,
                               const number_format::Format& format) {
  std::vector<double> values;
  const auto width = static_cast<std::size_t>(format.width);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += width) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &bytes[bit / 8], (width + 7) / 8);
    values.push_back(
        number_format::decode(format, number_format::low_bits(bits >> (bit % 8), format.width)));
  }
  return values;
}

struct Rig : test::DeviceRig {
  using DeviceRig::DeviceRig;

  std::vector<double> numbers(View x, const number_format::Format& format) const {
    return numbers_in(download<std::uint8_t>(*device, *stream, x.data, x.bytes()), format);
  }
  std::vector<double> numbers(View x) const { return numbers(x, number_format::format_of(x.type)); }
  std::unique_ptr<Product> product(const ProductSpec& spec, const std::string& algorithm = "") {
    return make_product(spec, *device, *stream, algorithm);
  }
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
    for (const Operands operands : all_operands()) {
      CAPTURE(name_of(operands));
      product->fill({operands, kSeed}, *rig.stream);
      CHECK(rig.numbers(product->a(), operand_format(type)) == operand(spec, operands, 0));
      CHECK(rig.numbers(product->b(), operand_format(type)) == operand(spec, operands, 1));
      product->run(*rig.stream);
      const std::vector<double> c = rig.numbers(product->c());
      const std::vector<double> expected = naive(spec, operands);
      if (operands == Operands::integers)
        CHECK(c == expected);
      else if (operands != Operands::denormals)  // the rounding of bfloat16
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

// Turns: the same product with its rows and columns in another order.

namespace {

/// Elements of C, as bits, that are not those of the product in its own order where the turn has
/// them.
std::size_t moved_wrong(Rig& rig, const ProductSpec& spec, Operands operands) {
  const auto product = rig.product(spec);
  const auto bits = [&](std::uint32_t turn) {
    product->fill({operands, kSeed, turn}, *rig.stream);
    product->run(*rig.stream);
    return download<std::uint8_t>(*rig.device, *rig.stream, product->c().data,
                                  product->c().bytes());
  };
  const std::vector<std::uint8_t> own = bits(0);
  const std::size_t width = size_of(result_type(spec.type));
  std::size_t wrong = 0;
  for (const std::uint32_t number : {1U, 2U}) {
    const std::vector<std::uint8_t> turned = bits(number);
    const Turn& turn = product->turn();
    CHECK(turned != own);
    for (std::int64_t row = 0; row < spec.m; ++row)
      for (std::int64_t column = 0; column < spec.n; ++column) {
        const auto to = static_cast<std::size_t>(row * spec.n + column) * width;
        const auto from = static_cast<std::size_t>(turn.rows.original(row) * spec.n +
                                                   turn.columns.original(column)) *
                          width;
        if (std::memcmp(&turned[to], &own[from], width) != 0) ++wrong;
      }
  }
  return wrong;
}

}  // namespace

TEST_CASE("a turned product has the elements of the product, to the bit", "[product]") {
  Rig rig(GENERATE(from_range(test::backends())));
  for (const ProductType type : product_types(*rig.device)) {
    CAPTURE(name_of(rig.device->kind()), name_of(type));
    CHECK(moved_wrong(rig, {type, 384, 256, 512}, Operands::full_entropy) == 0);
    CHECK(moved_wrong(rig, {type, 256, 128, 512}, Operands::integers) == 0);
  }
}

TEST_CASE("a turn moves tiles, and in them rows and groups of 16 bytes", "[product]") {
  const ProductSpec spec{ProductType::bf16, 1024, 512, 64};  // groups of 8 columns
  const Turn turn = turn_of(spec, kSeed, 1);
  for (const auto& [order, lines, group] :
       {std::tuple(turn.rows, spec.m, 1), std::tuple(turn.columns, spec.n, 8)}) {
    std::vector<std::int64_t> seen;
    int stayed = 0;
    for (std::int64_t place = 0; place < lines; ++place) {
      const std::int64_t line = order.original(place);
      seen.push_back(line);
      stayed += line == place ? 1 : 0;
      CHECK(line % group == place % group);
      CHECK(line / kTileEdge == order.tile(place / kTileEdge));
      CHECK(order.place_of_tile(line / kTileEdge) == place / kTileEdge);
    }
    std::sort(seen.begin(), seen.end());
    for (std::int64_t line = 0; line < lines; ++line) CHECK(seen[line] == line);
    CHECK(stayed < lines / 8);
  }
  CHECK(turn_of(spec, kSeed, 0).rows.original(77) == 77);
  const Turn other = turn_of(spec, kSeed, 2);
  CHECK(std::memcmp(other.rows.lines, turn.rows.lines, kTileEdge) != 0);
}

TEST_CASE("an operand that changes in memory is found, with its place", "[product]") {
  Rig rig(GENERATE(from_range(test::backends())));
  for (const ProductType type : product_types(*rig.device)) {
    CAPTURE(name_of(rig.device->kind()), name_of(type));
    const ProductSpec spec{type, 128, 256, 64};
    const auto product = rig.product(spec);
    product->fill({Operands::full_entropy, kSeed, 1}, *rig.stream);
    const auto compare = [&] {
      const Buffer wrong = rig.of(std::vector<WordErrors>(2));
      product->compare(static_cast<WordErrors*>(wrong.data()), *rig.stream);
      return download<WordErrors>(*rig.device, *rig.stream, wrong.data(), 2);
    };
    const auto none = compare();
    CHECK((none[0].count == 0 && none[1].count == 0));
    flip_bit(*rig.device, *rig.stream, product->a(), 101, 5);
    flip_bit(*rig.device, *rig.stream, product->b(), 7000, 1);
    flip_bit(*rig.device, *rig.stream, product->b(), 9000, 1);
    const auto found = compare();
    CHECK((found[0].count == 1 && found[0].first == 101));
    CHECK((found[1].count == 2 && found[1].first == 7000));
  }
}

TEST_CASE("C is the same wherever it begins in its buffer", "[product]") {
  Rig rig(GENERATE(from_range(test::backends())));
  for (const ProductType type : product_types(*rig.device)) {
    CAPTURE(name_of(rig.device->kind()), name_of(type));
    const auto product = rig.product({type, 256, 128, 128});
    product->fill({Operands::full_entropy, kSeed}, *rig.stream);
    product->run(*rig.stream);
    const auto own = rig.numbers(product->c());
    const void* const begin = product->c().data;
    product->move_result(kTileEdge);
    CHECK(product->c().data != begin);
    rig.device->zero(product->c().data, product->c().bytes(), *rig.stream);
    product->run(*rig.stream);
    CHECK(rig.numbers(product->c()) == own);
    product->move_result(0);
    CHECK(product->c().data == begin);
  }
}

TEST_CASE("operands of integers are dense, small, and give a C that its type holds", "[product]") {
  const ProductSpec spec = GENERATE(ProductSpec{ProductType::bf16, 24, 24, 8192},
                                    ProductSpec{ProductType::fp8, 24, 24, 16384},
                                    ProductSpec{ProductType::mxfp8, 24, 24, 16384},
                                    ProductSpec{ProductType::nvfp4, 24, 24, 16384});
  const std::vector<double> b = operand(spec, Operands::integers, 1);
  const auto zeros = std::count(b.begin(), b.end(), 0.0);
  const int most = spec.type == ProductType::nvfp4 ? 4 : 15;
  CHECK(zeros < static_cast<long>(b.size() / (most + 1)));
  CHECK(*std::min_element(b.begin(), b.end()) == -most);
  CHECK(*std::max_element(b.begin(), b.end()) == most);
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
  const auto shape = [](ProductType type, int sms, const char* compute_capability = "9.0") {
    const ProductSpec spec = whole_waves(type, sms, compute_capability);
    return std::vector<std::int64_t>{spec.m, spec.n, spec.k};
  };
  using Shape = std::vector<std::int64_t>;
  CHECK(shape(ProductType::bf16, 132) == Shape{8192, 8448, 8192});  // H100, H200
  CHECK(shape(ProductType::fp8, 132) == Shape{8448, 8192, 8192});
  CHECK(shape(ProductType::int8, 132) == Shape{8192, 8192, 8192});
  CHECK(shape(ProductType::fp64, 114) == Shape{8192, 7296, 8192});          // H100 PCIe
  CHECK(shape(ProductType::fp64, 148, "10.3") == Shape{2048, 2048, 2048});  // B300: a 64th of fp32
  CHECK(shape(ProductType::bf16, 142, "8.9") == Shape{8192, 9088, 8192});   // L40S
  for (const int sms : {108, 114, 132, 142, 148, 152, 160, 188, 78, 72, 56, 46, 7, 1}) {
    const ProductSpec spec = whole_waves(ProductType::tf32, sms, "8.0");
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

// What is verified: a product's sums and samples, the words of memory; one flipped bit is found and
// placed.

TEST_CASE("the sums of a product of integers place one flipped bit", "[product][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  for (const ProductType type : product_types(*device)) {
    const ProductSpec spec{type, 300, 272, 1024};
    CAPTURE(name_of(device->kind()), name_of(type));
    const auto product = make_product(spec, *device, *stream);
    const ProductVerifier verifier(spec, 3, *device, *stream);
    product->fill({Operands::integers, 3}, *stream);
    product->run(*stream);
    CHECK(verifier.check(product->c(), *stream).none());

    const int bits = 8 * static_cast<int>(size_of(result_type(type)));
    for (const int bit : {0, bits / 2, bits - 2}) {  // the sign of a zero does not count
      product->run(*stream);
      flip_bit(*device, *stream, product->c(), 17 * 272 + 5, bit);
      const WrongSums wrong = verifier.check(product->c(), *stream);
      CHECK(text_of(wrong, spec).starts_with("element (17, 5) of 300 x 272 differs by "));
    }
    // an operand that memory changed: a whole row of C
    std::size_t index = 9 * 1024 + 1;  // whose sign is the top bit of its word
    while (operand_value(type, Operands::integers, 3, 0, index) == 0) index += 2;
    const int bits_of_word = 8 * static_cast<int>(size_of(operand_type(type)));
    flip_bit(*device, *stream, product->a(), index * operand_format(type).width / bits_of_word,
             bits_of_word - 1);
    product->run(*stream);
    const WrongSums wrong = verifier.check(product->c(), *stream);
    REQUIRE(wrong.rows.size() <= 1);
    CHECK(wrong.columns.size() > 1);
    for (const WrongSum& row : wrong.rows) CHECK(row.index == 9);

    product->fill({Operands::full_entropy, 3}, *stream);
    product->run(*stream);
    CHECK(sampled_error(*product, 3, 20, *device, *stream) <= tolerance(type));
    product->fill({Operands::full_entropy, 4}, *stream);
    product->run(*stream);
    CHECK(sampled_error(*product, 3, 20, *device, *stream) > 0.1);
  }
}

namespace {

/// Of what lies in memory of the host, in double: for the types that no CPU's library multiplies.
class NaiveProduct final : public Product {
 public:
  NaiveProduct(const ProductSpec& spec, Device& device) : Product(spec, device) {}
  std::string algorithm() const override { return "naive"; }
  std::vector<std::string> algorithms() const override { return {algorithm()}; }
  void run(Stream&) override {
    const std::vector<double> first = numbers_of(a());
    const std::vector<double> second = numbers_of(b());
    auto* to = static_cast<std::uint16_t*>(c().data);
    const auto k = static_cast<std::size_t>(spec().k);
    for (std::size_t row = 0; row < first.size(); row += k)
      for (std::size_t column = 0; column < second.size(); column += k)
        *to++ = float_to_bfloat16(static_cast<float>(
            std::inner_product(&first[row], &first[row] + k, &second[column], 0.0)));
  }

 private:
  std::vector<double> numbers_of(View x) const {
    return numbers_in({static_cast<const std::uint8_t*>(x.data), x.bytes()},
                      operand_format(spec().type));
  }
};

}  // namespace

CPU_TEST_CASE("block-scaled products are verified as all others", "[product][kernels]") {
  const ProductType type = GENERATE(ProductType::mxfp8, ProductType::nvfp4);
  CAPTURE(name_of(type));
  Rig rig(BackendKind::cpu);
  const ProductSpec spec{type, 48, 40, 1024};
  NaiveProduct product(spec, *rig.device);
  CHECK(product.a().bytes() == 48 * 1024 / (type == ProductType::nvfp4 ? 2 : 1));
  for (const Operands operands : all_operands()) {
    CAPTURE(name_of(operands));
    product.fill({operands, kSeed}, *rig.stream);
    CHECK(rig.numbers(product.a(), operand_format(type)) == operand(spec, operands, 0));
    CHECK(rig.numbers(product.b(), operand_format(type)) == operand(spec, operands, 1));
    for (const double x : operand(spec, operands, 1)) CHECK(std::isfinite(x));
  }
  const ProductVerifier verifier(spec, kSeed, *rig.device, *rig.stream);
  const auto wrong = [&] {
    product.run(*rig.stream);
    return verifier.check(product.c(), *rig.stream);
  };
  product.fill({Operands::integers, kSeed}, *rig.stream);
  CHECK(wrong().none());
  CHECK(rig.numbers(product.c()) == naive(spec, Operands::integers));
  flip_bit(*rig.device, *rig.stream, product.c(), 17 * 40 + 5, 14);
  CHECK(text_of(verifier.check(product.c(), *rig.stream), spec)
            .starts_with("element (17, 5) of 48 x 40 differs by "));
  // One element of A in memory, to its lowest bit: its row of C, and no other.
  flip_bit(*rig.device, *rig.stream, product.a(), product.a().count / 48 * 9 + 3, 0);
  const WrongSums found = wrong();
  CHECK(found.columns.size() > 1);
  for (const WrongSum& row : found.rows) CHECK(row.index == 9);
  WordErrors errors[2];
  product.compare(errors, *rig.stream);
  CHECK((errors[0].count == 1 && errors[0].first == product.a().count / 48 * 9 + 3));
  CHECK(errors[1].count == 0);

  product.fill({Operands::full_entropy, kSeed}, *rig.stream);
  product.run(*rig.stream);
  CHECK(sampled_error(product, kSeed, 50, *rig.device, *rig.stream) <= tolerance(type));
  CHECK(sampled_error(product, kSeed + 1, 50, *rig.device, *rig.stream) > 0.1);
  std::set<double> values;
  for (const double x : operand(spec, Operands::full_entropy, 0)) values.insert(std::fabs(x));
  if (type == ProductType::nvfp4) CHECK(values == std::set<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6});
}

TEST_CASE("scale factors fill whole tiles of 128 rows and 4 factors", "[product]") {
  CHECK(scale_bytes({ProductType::fp8, 128, 128, 128}) == 0);
  CHECK(scale_bytes({ProductType::mxfp8, 8192, 9472, 8192}) == 9472 * 8192 / 32);
  CHECK(scale_bytes({ProductType::nvfp4, 8192, 9472, 8192}) == 9472 * 8192 / 16);
  CHECK(scale_bytes({ProductType::mxfp8, 96, 64, 160}) == 128 * 8);
  CHECK(scale_bytes({ProductType::nvfp4, 129, 64, 32}) == 256 * 4);
}

TEST_CASE("a product that the library does not support is left out with its words", "[product]") {
  struct NoTest final : RateTest {
    NoTest() : RateTest({}) {}
    void measure() override {}
  };
  const SupportedTests all =
      supported_tests({ProductType::bf16, ProductType::nvfp4}, test::session(),
                      [](ProductType type) -> std::unique_ptr<RateTest> {
                        if (type == ProductType::nvfp4) throw NotSupported("not on this GPU");
                        return std::make_unique<NoTest>();
                      });
  CHECK(all.tests.size() == 1);
  CHECK(all.remarks == std::vector<std::string>{"N/A product/nvfp4: rank 0: not on this GPU"});
  CHECK_THROWS_AS(supported_tests({ProductType::fp8}, test::session(),
                                  [](ProductType) -> std::unique_ptr<RateTest> {
                                    throw UsageError("another error");
                                  }),
                  UsageError);
}

TEST_CASE("wrong sums name an element where it is one", "[product]") {
  const ProductSpec spec{ProductType::fp32, 100, 100, 64};
  CHECK(text_of({{{3, 5}, {9, -2}}, {{1, -2}, {7, 5}}}, spec) ==
        "wrong sums of 2 rows from 3 to 9 and of 2 columns from 1 to 7, of 100 x 100");
  CHECK(text_of({{{3, 5}}, {{1, 5}}}, spec) == "element (3, 1) of 100 x 100 differs by 5");
  CHECK(text_of({}, spec).empty());
}

TEST_CASE("memory kernels write, sum, copy and combine every word", "[memory][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  const auto kernels = make_compute_kernels(device->kind());
  constexpr std::size_t kBytes = 3 * ComputeKernels::kChunkBytes;
  constexpr std::size_t kWords = kBytes / 8;
  const Buffer x(*device, kBytes);
  const Buffer y(*device, kBytes);
  const Buffer z(*device, kBytes);
  const auto words = [](const Buffer& buffer) { return buffer.view(DataType::uint64); };
  const auto wrong = [&](const Buffer& buffer, const Ramp& ramp) {
    const Buffer result = test::to_device(*device, *stream, std::vector<WordErrors>(1));
    kernels->check(words(buffer), ramp, static_cast<WordErrors*>(result.data()), *stream);
    return download<WordErrors>(*device, *stream, result.data(), 1).front();
  };
  const Ramp first{12345};
  const Ramp second{~std::uint64_t{77}, 0x1234567890ABCDEFU};
  kernels->write(words(x), first, *stream);
  kernels->write(words(y), second, *stream);
  const auto host = download<std::uint64_t>(*device, *stream, y.data(), kWords);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, kWords - 1})
    CHECK(host[i] == second.first + i * second.step);
  CHECK(wrong(x, first).count == 0);
  CHECK(wrong(x, second).count == kWords);

  const Buffer sum = test::to_device(*device, *stream, std::vector<std::uint64_t>(1));
  for (int run = 0; run < 2; ++run)
    kernels->read(words(x), static_cast<std::uint64_t*>(sum.data()), *stream);
  CHECK(download<std::uint64_t>(*device, *stream, sum.data(), 1)[0] == 2 * sum_of(first, kWords));
  CHECK(sum_of({5, 3}, 4) == 5 + 8 + 11 + 14);
  CHECK(sum_of({5, 3}, 3) == 5 + 8 + 11);

  kernels->copy(words(x), words(z), *stream);
  CHECK(wrong(z, first).count == 0);
  kernels->triad(words(x), words(y), words(z), *stream);
  CHECK(wrong(z, triad_of(first, second)).count == 0);
  flip_bit(*device, *stream, words(z), 5001, 13);
  flip_bit(*device, *stream, words(z), 5003, 60);
  CHECK(wrong(z, triad_of(first, second)).count == 2);
  CHECK(wrong(z, triad_of(first, second)).first == 5001);
}

TEST_CASE("the sum of ranks' words is known to the bit, of each piece", "[memory][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  const WordChecker checker(*device, 2);
  const Buffer memory(*device, 2 * ComputeKernels::kChunkBytes);
  const View words = memory.view(DataType::uint64);
  std::vector<std::uint64_t> sum(words.count);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    checker.kernels().write(words, {9 + rank, 5}, *stream);
    const auto host = download<std::uint64_t>(*device, *stream, words.data, words.count);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += host[i];
  }
  const auto check = [&] {
    upload<std::uint64_t>(*device, *stream, words.data, sum);
    return checker.check(
        words, 2,
        [&](std::uint64_t piece) {
          return Ramp{30, 15}.from(piece * sum.size() / 2);
        },
        *stream);
  };
  CHECK(check().count == 0);
  sum[5000] ^= 1U << 7;
  const WordErrors wrong = check();
  CHECK((wrong.count == 1 && wrong.first == 5000));
}

}  // namespace shakedown::node
