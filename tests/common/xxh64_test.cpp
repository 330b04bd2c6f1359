#include "common/hash.hpp"

#include <string>
#include <vector>

#include "tests/catch.hpp"

namespace shakedown {

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
