// Decoding, against files written here with the same libraries.
#include <png.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "common/error.hpp"
#include "common/hash.hpp"
#include "tests/catch.hpp"
#include "tests/support/jpeg.hpp"
#include "training/data/image.hpp"

using namespace shakedown;
using namespace shakedown::training;
using namespace shakedown::test;

namespace {

Bytes decode(const Bytes& file, std::optional<Region> region = {}) {
  ImageDecoder decoder;
  const Size size = decoder.open(file);
  return picture_of(decoder.decode(region.value_or(whole(size)))).values;
}

std::string error_of(const Bytes& file, std::optional<Region> region = {}) {
  try {
    decode(file, region);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
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
  int interlace = PNG_INTERLACE_NONE;
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
               layout.interlace, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
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

const Bytes kPixels{1, 2, 3, 40, 50, 60, 255, 0, 128, 7, 8, 9, 10, 11, 12, 250, 251, 252};  // 3 x 2

}  // namespace

TEST_CASE("an RGB PNG is decoded exactly, interlaced too") {
  const int interlace = GENERATE(PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7);
  const Bytes file = encode_png({3, 2, 8, PNG_COLOR_TYPE_RGB, interlace}, kPixels);
  CHECK(ImageDecoder().open(file) == Size{3, 2});
  CHECK(decode(file) == kPixels);
}

TEST_CASE("PNG alpha and transparent colours are dropped") {
  const Bytes rgba{1, 2, 3, 0, 40, 50, 60, 128, 70, 80, 90, 255};
  const Bytes rgb{1, 2, 3, 40, 50, 60, 70, 80, 90};
  CHECK(decode(encode_png({3, 1, 8, PNG_COLOR_TYPE_RGBA}, rgba)) == rgb);
  CHECK(decode(encode_png({2, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA}, {9, 0, 77, 128})) ==
        Bytes{9, 9, 9, 77, 77, 77});
  const auto transparent = [](png_structp png, png_infop info) {
    const png_color_16 color{0, 1, 2, 3, 0};
    png_set_tRNS(png, info, nullptr, 0, &color);
  };
  CHECK(decode(encode_png({3, 1, 8, PNG_COLOR_TYPE_RGB}, rgb, transparent)) == rgb);
}

TEST_CASE("gray PNGs of 1, 8 and 16 bits become RGB; 16 bits are clipped as PIL does") {
  CHECK(decode(encode_png({3, 1, 1, PNG_COLOR_TYPE_GRAY}, {0b10100000})) ==
        Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255});
  CHECK(decode(encode_png({2, 1, 8, PNG_COLOR_TYPE_GRAY}, {5, 200})) ==
        Bytes{5, 5, 5, 200, 200, 200});
  CHECK(decode(encode_png({2, 1, 16, PNG_COLOR_TYPE_GRAY}, {5, 255, 0, 200})) ==
        Bytes{255, 255, 255, 200, 200, 200});
}

TEST_CASE("a palette PNG becomes the palette's colours, with transparency or without") {
  const bool transparent = GENERATE(false, true);
  const auto palette = [&](png_structp png, png_infop info) {
    const png_color colors[3] = {{1, 2, 3}, {100, 110, 120}, {255, 0, 9}};
    png_set_PLTE(png, info, colors, 3);
    const png_byte alphas[2] = {0, 128};
    if (transparent) png_set_tRNS(png, info, alphas, 2, nullptr);
  };
  // 2 bits an index: 2 0 1
  const Bytes file = encode_png({3, 1, 2, PNG_COLOR_TYPE_PALETTE}, {0b10000100}, palette);
  CHECK(decode(file) == Bytes{255, 0, 9, 1, 2, 3, 100, 110, 120});
}

TEST_CASE("an RGB JPEG is decoded closely, baseline and progressive") {
  const bool progressive = GENERATE(false, true);
  const Bytes pixels = gradient(37, 21, 3);
  const Bytes file = write_jpeg({37, 21, pixels}, {.quality = 95, .progressive = progressive});
  CHECK(ImageDecoder().open(file) == Size{37, 21});
  CHECK(largest_difference(decode(file), pixels) <= 6);
}

TEST_CASE("a gray JPEG becomes RGB") {
  const Bytes pixels = gradient(16, 16, 1);
  const Bytes image = decode(write_jpeg({16, 16, pixels, 1}, {.quality = 95}));
  Bytes expected;
  for (std::uint8_t gray : pixels) expected.insert(expected.end(), 3, gray);
  CHECK(largest_difference(image, expected) <= 3);
}

TEST_CASE("CMYK and YCCK JPEGs hold Adobe's inverted inks") {
  const bool ycck = GENERATE(false, true);
  const Bytes inks = gradient(16, 16, 4);
  Bytes expected;
  for (std::size_t i = 0; i < inks.size(); i += 4)
    for (std::size_t c = 0; c < 3; ++c)
      expected.push_back(static_cast<std::uint8_t>(inks[i + c] * inks[i + 3] / 255));
  const Bytes image = decode(write_jpeg(
      {16, 16, inks, 4}, {.quality = 95, .luma_across = 1, .luma_down = 1, .ycck = ycck}));
  CHECK(largest_difference(image, expected) <= 6);
}

TEST_CASE("a truncated or corrupt file is an error, whatever part of it is requested") {
  const bool progressive = GENERATE(false, true);
  const Bytes jpeg = write_jpeg({37, 21, gradient(37, 21, 3)}, {.progressive = progressive});
  const Bytes png = encode_png({37, 21, 8, PNG_COLOR_TYPE_RGB}, gradient(37, 21, 3));
  for (const Bytes& whole : {jpeg, png}) {
    REQUIRE_NOTHROW(decode(whole));
    for (std::size_t kept : {std::size_t{12}, whole.size() / 2, whole.size() - 1}) {
      const Bytes cut(whole.begin(), whole.begin() + std::ptrdiff_t(kept));
      CHECK_THAT(error_of(cut), ContainsSubstring("truncated or corrupt"));
      CHECK_THAT(error_of(cut, Region{3, 0, 5, 4}), ContainsSubstring("truncated or corrupt"));
    }
  }
  Bytes damaged = png;
  damaged[damaged.size() / 2] ^= 0x10;
  CHECK_THAT(error_of(damaged), ContainsSubstring("truncated or corrupt"));
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
  CHECK_THAT(error_of(damaged), ContainsSubstring("truncated or corrupt"));
  CHECK_THAT(error_of(damaged, Region{0, 240, 64, 16}), ContainsSubstring("truncated or corrupt"));
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
  CHECK_THAT(error_of({'t', 'e', 'x', 't'}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(error_of({}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(error_of(claiming(60000, 60000)), ContainsSubstring("60000 x 60000 pixels"));
  CHECK_THAT(error_of(encode_png({70000, 1, 8, PNG_COLOR_TYPE_GRAY}, Bytes(70000))),
             ContainsSubstring("70000 x 1 pixels"));
}
