// What is verified: a product's sums and samples, the words of memory; one flipped bit is found and
// placed.
#include "launch/node/compute/verify.hpp"

#include "common/program.hpp"
#include "launch/node/compute/stream_kernels.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown::node {

TEST_CASE("the sums of a product of integers place one flipped bit", "[product][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  for (const ProductType type : product_types(*device)) {
    const ProductSpec spec{type, 300, 272, 1024};
    CAPTURE(name_of(device->kind()), name_of(type));
    const auto product = make_product(spec, *device, *stream);
    const ProductVerifier verifier(spec, 3, *device, *stream);
    product->fill(Operands::integers, 3, *stream);
    product->run(*stream);
    CHECK(verifier.check(product->c(), *stream).none());

    const int bits = 8 * static_cast<int>(size_of(result_type(type)));
    for (const int bit : {0, bits / 2, bits - 2}) {  // the sign of a zero does not count
      product->run(*stream);
      flip_bit(*device, *stream, product->c(), 17 * 272 + 5, bit);
      const WrongSums wrong = verifier.check(product->c(), *stream);
      REQUIRE(wrong.rows.size() == 1);
      REQUIRE(wrong.columns.size() == 1);
      const std::vector<WrongElement> elements = located(wrong);
      REQUIRE(elements.size() == 1);
      CHECK(elements[0].row == 17);
      CHECK(elements[0].column == 5);
      CHECK(text_of(wrong, spec).starts_with("element (17, 5) of 300 x 272 differs by "));
    }
    // an operand that memory changed: a whole row of C
    std::size_t index = 9 * 1024;
    while (operand_value(type, Operands::integers, 3, 0, index) == 0) ++index;
    const int sign = 8 * static_cast<int>(size_of(operand_type(type))) - 1;
    flip_bit(*device, *stream, product->a(), index, sign);
    product->run(*stream);
    const WrongSums wrong = verifier.check(product->c(), *stream);
    REQUIRE(wrong.rows.size() <= 1);
    CHECK(wrong.columns.size() > 1);
    for (const WrongSum& row : wrong.rows) CHECK(row.index == 9);

    product->fill(Operands::full_entropy, 3, *stream);
    product->run(*stream);
    CHECK(sampled_error(*product, 3, 20, *device, *stream) <= tolerance(type));
    product->fill(Operands::full_entropy, 4, *stream);
    product->run(*stream);
    CHECK(sampled_error(*product, 3, 20, *device, *stream) > 0.1);
  }
}

TEST_CASE("wrong sums name elements where they can", "[product]") {
  const ProductSpec spec{ProductType::fp32, 100, 100, 64};
  const WrongSums two{{{3, 5}, {9, -2}}, {{1, -2}, {7, 5}}};
  const auto elements = located(two);
  REQUIRE(elements.size() == 2);
  CHECK((elements[0].row == 3 && elements[0].column == 7));
  CHECK((elements[1].row == 9 && elements[1].column == 1));
  CHECK(text_of(two, spec) ==
        "wrong sums of 2 rows from 3 to 9 and of 2 columns from 1 to 7, of 100 x 100");
  CHECK(located({{{3, 5}, {9, 5}}, {{1, 5}, {7, 5}}}).empty());
  CHECK(located({{{3, 5}}, {{1, 2}, {7, 3}}}).size() == 2);
  CHECK(text_of({}, spec).empty());
}

TEST_CASE("memory kernels write, sum, copy and combine every word", "[memory][kernels]") {
  const auto device = test::open_device(GENERATE(from_range(test::backends())));
  const auto stream = device->make_stream();
  const auto kernels = make_stream_kernels(device->kind());
  constexpr std::size_t kBytes = 3 * StreamKernels::kChunkBytes;
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

}  // namespace shakedown::node
