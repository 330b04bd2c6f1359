#include <png.h>

#include <cstring>

#include "training/data/codec.hpp"

namespace shakedown::training {
namespace {

void on_error(png_structp png, png_const_charp reason) {
  static_cast<ErrorTrap*>(png_get_error_ptr(png))->fail(reason);
}

/// libpng warns of chunks that do not touch the pixels, such as a colour profile it dislikes.
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, std::size_t count) {
  auto& rest = *static_cast<std::span<const std::uint8_t>*>(png_get_io_ptr(png));
  if (rest.size() < count) png_error(png, "the file ends early");
  std::memcpy(to, rest.data(), count);
  rest = rest.subspan(count);
}

struct PngReader {
  PngReader() = default;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  png_structp png = nullptr;
  png_infop info = nullptr;
  ErrorTrap trap;
};

/// Whatever the file holds becomes 8-bit RGB, without gamma: the numbers as they were stored.
void ask_for_rgb(png_structp png) {
  png_set_expand(png);  // palette to RGB, 1, 2 and 4 bits to 8, transparency to alpha
  png_set_strip_16(png);
  png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

}  // namespace

Image decode_png(std::span<const std::uint8_t> file) {
  PngReader reader;
  reader.trap.attempt([&] {
    reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader.trap, on_error, on_warning);
    if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  });
  ENSURE(reader.info != nullptr, "libpng does not start: another version than the header's?");

  reader.trap.attempt([&] {
    png_set_read_fn(reader.png, &file, read_bytes);
    png_set_user_limits(reader.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // blank_image judges
    png_read_info(reader.png, reader.info);
  });
  Image image = blank_image(png_get_image_width(reader.png, reader.info),
                            png_get_image_height(reader.png, reader.info));
  reader.trap.attempt([&] {
    ask_for_rgb(reader.png);
    const int passes = png_set_interlace_handling(reader.png);
    png_read_update_info(reader.png, reader.info);
    const std::size_t row_bytes = image.rgb.size() / static_cast<std::size_t>(image.height);
    if (png_get_rowbytes(reader.png, reader.info) != row_bytes)
      png_error(reader.png, "libpng does not give RGB");
    for (int pass = 0; pass < passes; ++pass)
      for (std::size_t at = 0; at < image.rgb.size(); at += row_bytes)
        png_read_row(reader.png, image.rgb.data() + at, nullptr);
    png_read_end(reader.png, nullptr);
  });
  return image;
}

}  // namespace shakedown::training
