// Decoding, against files written here with the same libraries and against Pillow; images that a
// camera stored turned.
#include "training/data/image.hpp"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "common/hash.hpp"
#include "common/usage_error.hpp"
#include "tests/catch.hpp"
#include "tests/support/image_files.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/transform.hpp"

namespace shakedown::training {
namespace {

using namespace shakedown::test;
using nlohmann::json;
using test::Bytes;
using test::half_white_jpeg;
using test::png_of;
using test::TempFolder;

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

struct PngLayout {
  int width;
  int height;
  int bits;
  int color_type;
};

Bytes encode_png(const PngLayout& layout, Bytes pixels,
                 const std::function<void(png_structp, png_infop)>& more = {}) {
  Bytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto append = [](png_structp p, png_bytep data, std::size_t count) {
    auto& to = *static_cast<Bytes*>(png_get_io_ptr(p));
    to.insert(to.end(), data, data + count);
  };
  png_set_write_fn(png, &file, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(layout.width),
               static_cast<png_uint_32>(layout.height), layout.bits, layout.color_type,
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (more) more(png, info);
  png_write_info(png, info);
  std::vector<png_bytep> rows(static_cast<std::size_t>(layout.height));
  for (std::size_t y = 0; y < rows.size(); ++y)
    rows[y] = pixels.data() + y * png_get_rowbytes(png, info);
  png_write_image(png, rows.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
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

/// An EXIF segment with an orientation, in one of TIFF's byte orders.
Bytes exif_segment(int orientation, bool big_endian, std::uint32_t type = 3) {
  const auto number = [&](Bytes& to, std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      to.push_back(static_cast<std::uint8_t>(value >> 8 * (big_endian ? bytes - 1 - i : i)));
  };
  Bytes segment{0xFF, 0xE1, 0, 0, 'E', 'x', 'i', 'f', 0, 0};
  segment.insert(segment.end(), 2, big_endian ? 'M' : 'I');
  number(segment, 42, 2);
  number(segment, 8, 4);  // the directory follows
  number(segment, 2, 2);  // entries
  for (const std::uint32_t tag : {0x010FU, 0x0112U}) {
    number(segment, tag, 2);
    number(segment, type, 2);
    number(segment, 1, 4);
    number(segment, static_cast<std::uint32_t>(orientation), 2);
    number(segment, 0, 2);
  }
  number(segment, 0, 4);  // no further directory
  segment[3] = static_cast<std::uint8_t>(segment.size() - 2);
  return segment;
}

Bytes with_exif(Bytes jpeg, const Bytes& segment) {
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
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

TEST_CASE("a PNG's transparent colour is dropped") {  // and alpha, in the golden files
  const Bytes rgb{1, 2, 3, 40, 50, 60, 70, 80, 90};
  const auto transparent = [](png_structp png, png_infop info) {
    const png_color_16 color{0, 1, 2, 3, 0};
    png_set_tRNS(png, info, nullptr, 0, &color);
  };
  CHECK(decode(encode_png({3, 1, 8, PNG_COLOR_TYPE_RGB}, rgb, transparent)) == rgb);
}

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
  const Bytes png = encode_png({37, 21, 8, PNG_COLOR_TYPE_RGB}, gradient(37, 21, 3));
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
  CHECK_THAT(refusal_of(encode_png({70000, 1, 8, PNG_COLOR_TYPE_GRAY}, Bytes(70000))),
             ContainsSubstring("70000 x 1 pixels"));
}

// Images that a camera stored turned.

TEST_CASE("images are turned as PIL's exif_transpose does", "[exif]") {
  // 3 x 2: 1 2 3 / 4 5 6; expected: Pillow 12
  const std::vector<std::vector<int>> expected{
      {1, 2, 3, 4, 5, 6}, {3, 2, 1, 6, 5, 4}, {6, 5, 4, 3, 2, 1}, {4, 5, 6, 1, 2, 3},
      {1, 4, 2, 5, 3, 6}, {4, 1, 5, 2, 6, 3}, {6, 3, 5, 2, 4, 1}, {3, 6, 2, 5, 1, 4}};
  Image image;
  image.reshape({3, 2}, 3, 0);
  for (int v = 0; v < 6; ++v) {
    const std::array<std::uint8_t, 3> pixel{static_cast<std::uint8_t>(v + 1), 100,
                                            static_cast<std::uint8_t>(v + 1)};
    std::copy(pixel.begin(), pixel.end(), image.row(v / 3) + 4 * (v % 3));
  }
  for (int orientation = 1; orientation <= 8; ++orientation) {
    Image turned;
    turn_upright(image, orientation, turned);
    const auto [width, height] = turned.size();
    CHECK(turned.size() == upright(image.size(), orientation));
    CHECK(width == (orientation < 5 ? 3 : 2));
    CHECK(height == (orientation < 5 ? 2 : 3));
    CHECK(as_stored(whole(turned.size()), image.size(), orientation) == whole(image.size()));
    std::vector<int> values;
    for (int i = 0; i < 6; ++i) {
      const std::uint8_t* pixel = turned.row(i / width) + 4 * (i % width);
      CHECK(pixel[1] == 100);
      values.push_back(pixel[0]);
    }
    CHECK(values == expected[orientation - 1]);
    for (const bool big_endian : {false, true})
      CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(orientation, big_endian))) ==
            orientation);
  }
}

TEST_CASE("EXIF that makes no sense turns nothing", "[exif]") {
  CHECK(exif_orientation({}) == 1);
  CHECK(exif_orientation(half_white_jpeg()) == 1);
  CHECK(exif_orientation(png_of(0)) == 1);
  for (const int strange : {0, 9, 65535})
    CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(strange, true))) == 1);
  CHECK(exif_orientation(with_exif(half_white_jpeg(), exif_segment(6, true, 1))) == 1);  // BYTE
  const Bytes file = with_exif(half_white_jpeg(), exif_segment(6, false));
  for (std::size_t size = 0; size < 2 + exif_segment(6, false).size(); ++size)
    CHECK(exif_orientation(std::span(file).first(size)) == 1);  // the segment is cut
  for (const std::size_t at : {12U, 14U, 16U, 17U}) {  // not II, not 42, the directory elsewhere
    Bytes bad = file;
    bad[at] ^= 0xFF;
    CHECK(exif_orientation(bad) == 1);
  }
}

TEST_CASE("--exif turns what is read", "[exif]") {
  const TempFolder folder;
  folder.write("a/1.jpg", with_exif(half_white_jpeg(), exif_segment(6, false)));
  const FolderSource images(scan_image_folder(folder.path));
  BadImages bad(0, {});
  TransformSettings settings{16, Augmentation::none, true, false};
  Bytes plain(16 * 16 * 3), turned(plain.size());
  CHECK(SampleReader(images, settings, bad).read(0, 0, plain).label == 0);
  settings.exif = true;
  CHECK(SampleReader(images, settings, bad).read(0, 0, turned).label == 0);
  const std::size_t left_below = std::size_t{15} * 16 * 3;
  CHECK(plain[left_below] > 200);
  CHECK(turned[left_below] < 50);
  CHECK(turned[15 * 3] > 200);  // the left half came to the top
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

}  // namespace shakedown::training
