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

/// Values of 16 bits to 8, as PIL converts a gray image of mode I;16.
void clip_to_8_bits(png_structp, png_row_infop row, png_bytep values) {
  for (std::size_t i = 0; i < row->rowbytes / 2; ++i)
    values[i] = values[2 * i] != 0 ? 255 : values[2 * i + 1];
}

class PngDecoder final : public FormatDecoder {
 public:
  PngDecoder() = default;
  ~PngDecoder() override { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  Size open(std::span<const std::uint8_t> file) override {
    png_destroy_read_struct(&png_, &info_, nullptr);
    rest_ = file;
    trap_.attempt([&] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &trap_, on_error, on_warning);
      if (png_ != nullptr) info_ = png_create_info_struct(png_);
    });
    ENSURE(info_ != nullptr, "libpng does not start: another version than the header's?");
    trap_.attempt([&] {
      png_set_read_fn(png_, &rest_, read_bytes);
      png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // checked_size judges
      png_read_info(png_, info_);
    });
    return checked_size(png_get_image_width(png_, info_), png_get_image_height(png_, info_));
  }

  /// Decodes all of it: each row is compressed in terms of those above, and checksums come last.
  void decode(Region region, Size, Image& image) override {
    const int width = static_cast<int>(png_get_image_width(png_, info_));
    const int height = static_cast<int>(png_get_image_height(png_, info_));
    image.reshape({width, height}, width, 0);
    trap_.attempt([&] {
      request_rgb();
      const int passes = png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
      if (png_get_rowbytes(png_, info_) != std::size_t{4} * static_cast<std::size_t>(width))
        png_error(png_, "libpng does not give RGB");
      for (int pass = 0; pass < passes; ++pass)
        for (int y = 0; y < height; ++y) png_read_row(png_, image.row(y), nullptr);
      png_read_end(png_, nullptr);
    });
    image.narrow(region);
  }

 private:
  /// Whatever the file holds becomes 8-bit RGB and a fourth byte, without gamma: the numbers as
  /// they were stored.
  void request_rgb() {
    const bool gray = png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY;
    png_set_expand(png_);  // palette to RGB, 1, 2 and 4 bits to 8, transparency to alpha
    png_set_gray_to_rgb(png_);
    png_set_filler(png_, 0, PNG_FILLER_AFTER);  // where there is no alpha
    if (gray && png_get_bit_depth(png_, info_) == 16) {
      png_set_read_user_transform_fn(png_, clip_to_8_bits);
      png_set_user_transform_info(png_, nullptr, 8, 4);
    } else {
      png_set_strip_16(png_);
    }
  }

  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::span<const std::uint8_t> rest_;
  ErrorTrap trap_;
};

}  // namespace

std::unique_ptr<FormatDecoder> make_png_decoder() { return std::make_unique<PngDecoder>(); }

}  // namespace shakedown::training
