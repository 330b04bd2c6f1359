// Decoding, against files written here with the same libraries.
#include <cstdio>
// jpeglib.h needs cstdio's FILE
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <functional>
#include <string>

#include "common/error.hpp"
#include "tests/catch.hpp"
#include "training/data/image.hpp"

using namespace shakedown;
using namespace shakedown::training;

namespace {

using Bytes = std::vector<std::uint8_t>;

std::string error_of(const Bytes& file) {
  try {
    decode_image(file);
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

/// `stored` is the colour space in the file, `given` that of the pixels.
Bytes encode_jpeg(int width, int height, J_COLOR_SPACE given, J_COLOR_SPACE stored, Bytes pixels,
                  bool progressive = false) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&state, &memory, &bytes);
  state.image_width = static_cast<JDIMENSION>(width);
  state.image_height = static_cast<JDIMENSION>(height);
  state.input_components = static_cast<int>(pixels.size()) / (width * height);
  state.in_color_space = given;
  jpeg_set_defaults(&state);
  jpeg_set_colorspace(&state, stored);
  jpeg_set_quality(&state, 95, TRUE);
  if (progressive) jpeg_simple_progression(&state);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    JSAMPROW row = pixels.data() + std::size_t{state.next_scanline} * state.image_width *
                                       static_cast<std::size_t>(state.input_components);
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  Bytes file(memory, memory + bytes);
  jpeg_destroy_compress(&state);
  free(memory);
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

const Bytes kPixels{1, 2, 3, 40, 50, 60, 255, 0, 128, 7, 8, 9, 10, 11, 12, 250, 251, 252};  // 3 x 2

}  // namespace

TEST_CASE("an RGB PNG is decoded exactly, interlaced too") {
  const int interlace = GENERATE(PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7);
  const Image image = decode_image(encode_png({3, 2, 8, PNG_COLOR_TYPE_RGB, interlace}, kPixels));
  CHECK(image.width == 3);
  CHECK(image.height == 2);
  CHECK(image.rgb == kPixels);
}

TEST_CASE("PNG alpha and transparent colours are dropped") {
  const Bytes rgba{1, 2, 3, 0, 40, 50, 60, 128, 70, 80, 90, 255};
  const Bytes rgb{1, 2, 3, 40, 50, 60, 70, 80, 90};
  CHECK(decode_image(encode_png({3, 1, 8, PNG_COLOR_TYPE_RGBA}, rgba)).rgb == rgb);
  CHECK(decode_image(encode_png({2, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA}, {9, 0, 77, 128})).rgb ==
        Bytes{9, 9, 9, 77, 77, 77});
  const auto transparent = [](png_structp png, png_infop info) {
    const png_color_16 color{0, 1, 2, 3, 0};
    png_set_tRNS(png, info, nullptr, 0, &color);
  };
  CHECK(decode_image(encode_png({3, 1, 8, PNG_COLOR_TYPE_RGB}, rgb, transparent)).rgb == rgb);
}

TEST_CASE("gray PNGs of 1, 8 and 16 bits become RGB; 16 bits keep the upper 8") {
  CHECK(decode_image(encode_png({3, 1, 1, PNG_COLOR_TYPE_GRAY}, {0b10100000})).rgb ==
        Bytes{255, 255, 255, 0, 0, 0, 255, 255, 255});
  CHECK(decode_image(encode_png({2, 1, 8, PNG_COLOR_TYPE_GRAY}, {5, 200})).rgb ==
        Bytes{5, 5, 5, 200, 200, 200});
  CHECK(decode_image(encode_png({2, 1, 16, PNG_COLOR_TYPE_GRAY}, {5, 255, 200, 0})).rgb ==
        Bytes{5, 5, 5, 200, 200, 200});
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
  CHECK(decode_image(file).rgb == Bytes{255, 0, 9, 1, 2, 3, 100, 110, 120});
}

TEST_CASE("an RGB JPEG is decoded closely, baseline and progressive") {
  const bool progressive = GENERATE(false, true);
  const Bytes pixels = gradient(37, 21, 3);
  const Image image = decode_image(encode_jpeg(37, 21, JCS_RGB, JCS_YCbCr, pixels, progressive));
  CHECK(image.width == 37);
  CHECK(image.height == 21);
  CHECK(largest_difference(image.rgb, pixels) <= 6);
}

TEST_CASE("a gray JPEG becomes RGB") {
  const Bytes pixels = gradient(16, 16, 1);
  const Image image = decode_image(encode_jpeg(16, 16, JCS_GRAYSCALE, JCS_GRAYSCALE, pixels));
  Bytes expected;
  for (std::uint8_t gray : pixels) expected.insert(expected.end(), 3, gray);
  CHECK(largest_difference(image.rgb, expected) <= 3);
}

TEST_CASE("CMYK and YCCK JPEGs hold Adobe's inverted inks") {
  const J_COLOR_SPACE stored = GENERATE(JCS_CMYK, JCS_YCCK);
  const Bytes inks = gradient(16, 16, 4);
  Bytes expected;
  for (std::size_t i = 0; i < inks.size(); i += 4)
    for (std::size_t c = 0; c < 3; ++c)
      expected.push_back(static_cast<std::uint8_t>(inks[i + c] * inks[i + 3] / 255));
  const Image image = decode_image(encode_jpeg(16, 16, JCS_CMYK, stored, inks));
  CHECK(largest_difference(image.rgb, expected) <= 6);
}

TEST_CASE("a truncated or corrupt file is an error") {
  const bool progressive = GENERATE(false, true);
  const Bytes jpeg = encode_jpeg(37, 21, JCS_RGB, JCS_YCbCr, gradient(37, 21, 3), progressive);
  const Bytes png = encode_png({37, 21, 8, PNG_COLOR_TYPE_RGB}, gradient(37, 21, 3));
  for (const Bytes& whole : {jpeg, png}) {
    REQUIRE_NOTHROW(decode_image(whole));
    for (std::size_t kept : {std::size_t{12}, whole.size() / 2, whole.size() - 1}) {
      CHECK_THAT(error_of(Bytes(whole.begin(), whole.begin() + std::ptrdiff_t(kept))),
                 ContainsSubstring("truncated or corrupt"));
    }
  }
  Bytes damaged = png;
  damaged[damaged.size() / 2] ^= 0x10;
  CHECK_THAT(error_of(damaged), ContainsSubstring("truncated or corrupt"));
}

TEST_CASE("bytes between a JPEG's segments do no harm") {
  const Bytes whole = encode_jpeg(37, 21, JCS_RGB, JCS_YCbCr, gradient(37, 21, 3));
  const Bytes padded = concat(concat(Bytes(whole.begin(), whole.end() - 2), Bytes(64, 0x12)),
                              Bytes(whole.end() - 2, whole.end()));
  CHECK(decode_image(padded).rgb == decode_image(whole).rgb);
}

TEST_CASE("what is not an image is an error that says so") {
  CHECK_THAT(error_of({'t', 'e', 'x', 't'}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(error_of({}), ContainsSubstring("neither JPEG nor PNG"));
  CHECK_THAT(error_of(encode_png({70000, 1, 8, PNG_COLOR_TYPE_GRAY}, Bytes(70000))),
             ContainsSubstring("70000 x 1 pixels"));
}
