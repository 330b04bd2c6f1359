// Decoding and scaling against Pillow: tests/golden/make_images.py says what is in the file.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/transform.hpp"

using namespace shakedown;
using namespace shakedown::training;
using namespace shakedown::test;
using nlohmann::json;

namespace {

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
  Resizer portable(portable_passes()), fastest;
  const json cases = golden().at("resized");  // a temporary would be gone in the loop
  for (const json& c : cases) {
    INFO(c.dump());
    const Image image = make_image(size_of(c.at("from")));
    const Size to = size_of(c.at("to"));
    Bytes out(static_cast<std::size_t>(3 * to.width * to.height));
    for (Resizer* resize : {&portable, &fastest}) {
      (*resize)(image, to, whole(to), false, out);
      CHECK(hash_of(out) == c.at("rgb").get<std::string>());
    }
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
