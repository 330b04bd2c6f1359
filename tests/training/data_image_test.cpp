// Decoding, against files written here with the same libraries and against Pillow.
#include "training/data/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "common/hash.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support.hpp"
#include "tests/support/image_files.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {
namespace {

using namespace shakedown::test;
using nlohmann::json;
using test::Bytes;

Bytes decode(const Bytes& file, std::optional<Region> region = {}) {
  ImageDecoder decoder;
  const Size size = decoder.open(file);
  return picture_of(decoder.decode(region.value_or(whole(size)))).values;
}

std::string refusal_of(const Bytes& file, std::optional<Region> region = {}) {
  return error_of([&] { decode(file, region); });
}

Bytes concat(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Channels that rise slowly in different directions: what JPEG keeps well.
Bytes gradient(int width, int height, int channels) {
  Bytes pixels;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        pixels.push_back(static_cast<std::uint8_t>(40 + 3 * (c % 2 ? x : y) + 20 * c));
  return pixels;
}

int largest_difference(const Bytes& a, const Bytes& b) {
  REQUIRE(a.size() == b.size());
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// A JPEG whose header lies about its size.
Bytes claiming(unsigned width, unsigned height) {
  Bytes file = write_jpeg({16, 16, gradient(16, 16, 3)});
  const Bytes frame{0xFF, 0xC0, 0, 17, 8};  // baseline, 17 bytes with the length, 8 bits
  const auto at = std::search(file.begin(), file.end(), frame.begin(), frame.end());
  REQUIRE(at != file.end());
  for (const unsigned shift : {8U, 0U}) {
    at[shift == 8 ? 5 : 6] = static_cast<std::uint8_t>(height >> shift);
    at[shift == 8 ? 7 : 8] = static_cast<std::uint8_t>(width >> shift);
  }
  return file;
}

json golden() {
  std::ifstream in("tests/golden/images.json");
  return json::parse(in);
}

/// FNV-1a.
std::string hash_of(const Bytes& bytes) {
  std::uint64_t value = 0xCBF29CE484222325;
  for (const std::uint8_t byte : bytes) value = (value ^ byte) * 0x100000001B3;
  return fmt::format("{:016x}", value);
}

Bytes bytes_of_hex(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// The formula of make_images.py.
Image make_image(Size size) {
  Image image;
  image.reshape(size, size.width, 0);
  for (int y = 0; y < size.height; ++y)
    for (int x = 0; x < size.width; ++x)
      for (int c = 0; c < 3; ++c)
        image.row(y)[4 * x + c] =
            static_cast<std::uint8_t>(3 * x * (c + 1) + 5 * y * (3 - c) + (x * y >> 3));
  return image;
}

Size size_of(const json& pair) { return {pair.at(0), pair.at(1)}; }

}  // namespace

TEST_CASE("YCCK JPEGs hold Adobe's inverted inks, as CMYK ones") {
  const Bytes inks = gradient(16, 16, 4);
  Bytes expected;
  for (std::size_t i = 0; i < inks.size(); i += 4)
    for (std::size_t c = 0; c < 3; ++c)
      expected.push_back(static_cast<std::uint8_t>(inks[i + c] * inks[i + 3] / 255));
  const Bytes image = decode(write_jpeg(
      {16, 16, inks, 4}, {.quality = 95, .luma_across = 1, .luma_down = 1, .ycck = true}));
  CHECK(largest_difference(image, expected) <= 6);
}

TEST_CASE("a truncated or corrupt file is an error, whatever part of it is requested") {
  const bool progressive = GENERATE(false, true);
  const Bytes jpeg = write_jpeg({37, 21, gradient(37, 21, 3)}, {.progressive = progressive});
  const Bytes png = png_of(1, {37, 21});
  for (const Bytes& whole : {jpeg, png}) {
    REQUIRE_NOTHROW(decode(whole));
    for (std::size_t kept : {std::size_t{12}, whole.size() / 2, whole.size() - 1}) {
      CAPTURE(progressive, &whole == &png, kept);
      const Bytes cut(whole.begin(), whole.begin() + (kept));
      CHECK_THAT(refusal_of(cut), ContainsSubstring("truncated or corrupt"));
      CHECK_THAT(refusal_of(cut, Region{3, 0, 5, 4}), ContainsSubstring("truncated or corrupt"));
    }
  }
  Bytes damaged = png;
  damaged[damaged.size() / 2] ^= 0x10;
  CHECK_THAT(refusal_of(damaged), ContainsSubstring("truncated or corrupt"));
}

TEST_CASE("any region of a JPEG has the pixels of the whole image") {
  struct Kind {
    int channels, across, down;
  };
  const bool progressive = GENERATE(false, true);
  const Kind kind = GENERATE(Kind{1, 1, 1}, Kind{3, 1, 1}, Kind{3, 2, 1}, Kind{3, 2, 2},
                             Kind{3, 1, 2}, Kind{3, 4, 1}, Kind{3, 4, 2}, Kind{4, 2, 2});
  Random random(1);
  const auto within = [&](int most) {
    return 1 + static_cast<int>(random.below(static_cast<std::size_t>(most)));
  };
  ImageDecoder decoder;
  for (int file = 0; file < 12; ++file) {
    const Size size{within(file % 2 ? 40 : 200), within(file % 3 ? 40 : 150)};
    Bytes noise(static_cast<std::size_t>(size.width * size.height * kind.channels));
    for (std::uint8_t& value : noise) value = static_cast<std::uint8_t>(random.next());
    const Bytes encoded = write_jpeg({size.width, size.height, noise, kind.channels},
                                     {.luma_across = kind.across,
                                      .luma_down = kind.down,
                                      .progressive = progressive,
                                      .ycck = kind.channels == 4,
                                      .restart_interval = file % 4 * 5});
    decoder.open(encoded);
    Image full = decoder.decode(whole(size));
    for (int i = 0; i < 8; ++i) {
      const int x = within(size.width) - 1, y = within(size.height) - 1;
      const Region region{x, y, within(size.width - x), within(size.height - y)};
      Image expected = full;
      expected.narrow(region);
      REQUIRE(decoder.open(encoded) == size);
      REQUIRE(picture_of(decoder.decode(region)).values == picture_of(expected).values);
    }
  }
}

TEST_CASE("a JPEG that is corrupt below the region is accepted, above it refused") {
  const Bytes whole = write_jpeg({64, 256, gradient(64, 256, 3)});
  Bytes damaged = whole;
  const auto at = static_cast<std::ptrdiff_t>(whole.size() * 3 / 4);
  const Bytes marker{0xFF, 0xD7};  // a restart that the file does not have
  std::copy(marker.begin(), marker.end(), damaged.begin() + at);
  CHECK(decode(damaged, Region{0, 0, 64, 16}) == decode(whole, Region{0, 0, 64, 16}));
  CHECK_THAT(refusal_of(damaged), ContainsSubstring("truncated or corrupt"));
  CHECK_THAT(refusal_of(damaged, Region{0, 240, 64, 16}),
             ContainsSubstring("truncated or corrupt"));
}

TEST_CASE("one file's tables do not serve the next") {
  Bytes file = write_jpeg({16, 16, gradient(16, 16, 3)});
  const Bytes tables{0xFF, 0xDB};
  const auto at = std::search(file.begin(), file.end(), tables.begin(), tables.end());
  Bytes without = file;
  without[static_cast<std::size_t>(at - file.begin()) + 1] = 0xFE;  // a comment now
  ImageDecoder decoder;
  decoder.open(file);
  decoder.decode({0, 0, 16, 16});
  CHECK_THROWS_AS((decoder.open(without), decoder.decode({0, 0, 16, 16})), UsageError);
}

TEST_CASE("bytes between a JPEG's segments do no harm") {
  const Bytes whole = write_jpeg({37, 21, gradient(37, 21, 3)});
  const Bytes padded = concat(concat(Bytes(whole.begin(), whole.end() - 2), Bytes(64, 0x12)),
                              Bytes(whole.end() - 2, whole.end()));
  CHECK(decode(padded) == decode(whole));
}

TEST_CASE("what is not an image is an error that says so") {
  CHECK_THAT(refusal_of({'t', 'e', 'x', 't'}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(refusal_of({}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(refusal_of(claiming(60000, 60000)), ContainsSubstring("60000 x 60000 pixels"));
  CHECK_THAT(refusal_of(png_of(1, {70000, 1})), ContainsSubstring("70000 x 1 pixels"));
}

// Decoding and scaling against Pillow: tests/golden/make_images.py says what is in the file.

TEST_CASE("every kind of file is decoded to Pillow's pixels", "[golden]") {
  ImageDecoder decoder;
  const json cases = golden().at("decoded");  // a temporary would be gone in the loop
  for (const json& c : cases) {
    INFO(c.at("name").get<std::string>());
    const Bytes file = bytes_of_hex(c.at("file"));
    const Size size = decoder.open(file);
    CHECK(size == Size{c.at("width"), c.at("height")});
    CHECK(hash_of(picture_of(decoder.decode(whole(size))).values) ==
          c.at("rgb").get<std::string>());
  }
}

TEST_CASE("images are scaled to Pillow's pixels", "[golden]") {
  Resizer resize;
  const json cases = golden().at("resized");  // a temporary would be gone in the loop
  for (const json& c : cases) {
    INFO(c.dump());
    const Image image = make_image(size_of(c.at("from")));
    const Size to = size_of(c.at("to"));
    Bytes out(static_cast<std::size_t>(3 * to.width * to.height));
    resize(image, to, whole(to), false, out);
    CHECK(hash_of(out) == c.at("rgb").get<std::string>());
  }
}

TEST_CASE("validation gives the pixels of torchvision's Resize and CenterCrop", "[golden]") {
  const json cases = golden().at("validated");  // a temporary would be gone in the loop
  for (const json& c : cases) {
    INFO(c.dump());
    TransformSettings settings;
    settings.image_size = c.at("image_size");
    settings.resize = c.at("resize");
    Bytes out(static_cast<std::size_t>(3 * settings.image_size * settings.image_size));
    Random random(0);
    Transform transform(settings);
    transform(make_image(size_of(c.at("from"))), false, random, out);
    CHECK(hash_of(out) == c.at("rgb").get<std::string>());
  }
}

}  // namespace shakedown::training
