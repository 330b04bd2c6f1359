// The hash of memory, on every backend, and that of files.
#include "common/hash.hpp"

#include <bit>
#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/support.hpp"

namespace shakedown {
namespace {

std::uint64_t hash_on(BackendKind kind, const std::vector<float>& values, DataType type) {
  const auto device = test::open_device(kind);
  const auto stream = device->make_stream();
  const Buffer x = test::to_device(*device, *stream, values);
  const Buffer hash = test::to_device(*device, *stream, std::vector<std::uint64_t>{100});
  device->kernels().add_bit_hash(x.view(type), static_cast<std::uint64_t*>(hash.data()), *stream);
  return download<std::uint64_t>(*device, *stream, hash.data(), 1).front() - 100;
}

}  // namespace

TEST_CASE("the device hashes as the host does, by elements of any size", "[bit_hash]") {
  const BackendKind kind = GENERATE(from_range(test::backends()));
  const auto values = test::random_values(GENERATE(2, 1000, 1000006), 3);
  for (DataType type :
       {DataType::uint8, DataType::bfloat16, DataType::float32, DataType::float64}) {
    CAPTURE(name_of(type));
    const std::size_t count = values.size() * sizeof(float) / size_of(type);
    CHECK(hash_on(kind, values, type) == bit_hash({values.data(), count, type, Place::host}));
  }
}

TEST_CASE("every bit and every place changes the hash", "[bit_hash]") {
  std::vector<float> values(64, 0.0F);
  const auto hash = [&] { return bit_hash(ConstView(std::span<const float>(values))); };
  const std::uint64_t of_zeros = hash();
  for (float& value : values)
    for (int bit = 0; bit < 32; ++bit) {
      value = std::bit_cast<float>(1U << bit);
      CHECK(hash() != of_zeros);
      value = 0;
    }
  values[0] = -0.0F;
  const std::uint64_t of_first = hash();
  std::swap(values[0], values[1]);
  CHECK(hash() != of_first);
}

TEST_CASE("XXH64 is the reference implementation's", "[xxh64]") {
  const auto of = [](const std::string& text) {
    return xxh64({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  };
  CHECK(of("") == 0xef46db3751d8e999U);
  CHECK(of("a") == 0xd24ec4f1a98c6e5bU);
  CHECK(of("abc") == 0x44bc2cf5ad770999U);
  CHECK(of("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1U);
  std::vector<std::uint8_t> every_byte;
  for (int i = 0; i < 256; ++i) every_byte.push_back(static_cast<std::uint8_t>(i));
  CHECK(xxh64(every_byte) == 0x1facbe8406cd904bU);
}

}  // namespace shakedown
