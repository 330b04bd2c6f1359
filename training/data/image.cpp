// JPEG by libjpeg's own interface, as not every machine has TurboJPEG's; PNG by libpng.
#include "training/data/image.hpp"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

// jpeglib.h needs cstdio's FILE, and sets the version that the numbers of jerror.h depend on: those
// of Ubuntu's libjpeg-turbo (8) are others than Debian's (6.2).
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include "common/ensure.hpp"
#include "common/usage_error.hpp"

namespace shakedown::training {

/// Of one format, as ImageDecoder describes it. Throws UsageError with the reason only.
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;
  virtual Size open(std::span<const std::uint8_t> file) = 0;
  virtual void decode(Region region, Image& image) = 0;
};

namespace {

/// Throws UsageError for dimensions that no photograph has.
Size checked_size(std::uint32_t width, std::uint32_t height) {
  constexpr std::uint32_t kMaxSide = 65535;
  constexpr std::uint64_t kMaxPixels = 1U << 27;  // 512 MiB decoded
  if (width > kMaxSide || height > kMaxSide || std::uint64_t{width} * height > kMaxPixels)
    throw UsageError(
        fmt::format("{} x {} pixels are more than an image should have", width, height));
  return {static_cast<int>(width), static_cast<int>(height)};
}

/// Turns the errors of libjpeg and libpng, whose handlers must not return, into exceptions.
/// An exception may not pass through their C frames, so the handler jumps over them.
class ErrorTrap {
 public:
  /// Runs `step`; throws UsageError when the library failed within. The jump runs no destructors:
  /// `step` may call the library and use what its caller owns, but own nothing itself.
  template <class Step>
  void attempt(const Step& step) {
    if (setjmp(back_) != 0) throw UsageError(reason_);
    step();
  }

  /// For the library's error handler, called within `attempt`.
  [[noreturn]] void fail(const char* reason) {
    std::snprintf(reason_, sizeof reason_, "truncated or corrupt (%s)", reason);
    std::longjmp(back_, 1);
  }

 private:
  std::jmp_buf back_;
  char reason_[256] = "";
};

ErrorTrap& trap_of(j_common_ptr state) { return *static_cast<ErrorTrap*>(state->client_data); }

void on_error(j_common_ptr state) {
  char reason[JMSG_LENGTH_MAX];
  state->err->format_message(state, reason);
  trap_of(state).fail(reason);
}

/// libjpeg only warns where it makes up pixels, and those would train the network on grey. Its
/// other warnings (extra bytes between segments, odd markers) leave the image whole, and ImageNet
/// has them.
void on_message(j_common_ptr state, int level) {
  constexpr std::array kMadeUp{JWRN_JPEG_EOF, JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE,
                               JWRN_MUST_RESYNC};
  const bool warning = level < 0;
  if (warning && std::count(kMadeUp.begin(), kMadeUp.end(), state->err->msg_code) > 0)
    on_error(state);
}

// ---- rows of four bytes a pixel
// ------------------------------------------------------------------

/// Inverted inks, as Adobe writes them, over white paper: each is a transmittance of 0..255.
void inks_to_rgb(std::uint8_t* pixel, int width) {
  for (int x = 0; x < width; ++x, pixel += 4)
    for (int c = 0; c < 3; ++c)
      pixel[c] = static_cast<std::uint8_t>((pixel[c] * pixel[3] + 127) / 255);
}

// ---- parts of an image: libjpeg-turbo has calls for them, libjpeg decodes all up to the last row
// ---

/// Columns of the decoded image.
struct Columns {
  JDIMENSION first;
  JDIMENSION count;
};

#if defined(LIBJPEG_TURBO_VERSION_NUMBER) && LIBJPEG_TURBO_VERSION_NUMBER >= 2000000
/// Chroma pixels at the left and right edge of what is decoded lack a neighbour to interpolate
/// with: two pixels more on either side keep those of `needed` as they are in the whole image
/// (tested with libjpeg-turbo 2.0.6 to 3.2).
Columns crop(jpeg_decompress_struct& state, Region needed) {
  constexpr int kMargin = 2;
  const int left = std::max(needed.x - kMargin, 0);
  const int right =
      std::min(needed.x + needed.width + kMargin, static_cast<int>(state.output_width));
  Columns columns{static_cast<JDIMENSION>(left), static_cast<JDIMENSION>(right - left)};
  if (columns.count == state.output_width) return {0, state.output_width};
  jpeg_crop_scanline(&state, &columns.first, &columns.count);
  return columns;
}

void skip_rows(jpeg_decompress_struct& state, JDIMENSION count, JSAMPROW) {
  if (count > 0) jpeg_skip_scanlines(&state, count);
}
#else
Columns crop(jpeg_decompress_struct& state, Region) { return {0, state.output_width}; }

void skip_rows(jpeg_decompress_struct& state, JDIMENSION count, JSAMPROW scratch) {
  while (state.output_scanline < count) jpeg_read_scanlines(&state, &scratch, 1);
}
#endif

class JpegDecoder final : public FormatDecoder {
 public:
  JpegDecoder() {
    state_.err = jpeg_std_error(&errors_);
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    state_.client_data = &trap_;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&state_); }  // harmless if never created
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  Size open(std::span<const std::uint8_t> file) override {
    jpeg_destroy_decompress(
        &state_);  // or one file's tables would serve the next that lacks its own
    trap_.attempt([&] {
      jpeg_create_decompress(&state_);
      jpeg_mem_src(&state_, file.data(), file.size());
      jpeg_read_header(&state_, TRUE);
    });
    return checked_size(state_.image_width, state_.image_height);
  }

  void decode(Region region, Image& image) override {
    const bool inks = state_.num_components == 4;  // CMYK or YCCK
    Columns columns{};
    trap_.attempt([&] {
      state_.out_color_space = inks ? JCS_CMYK : JCS_EXT_RGBX;
      jpeg_start_decompress(&state_);
      columns = crop(state_, region);
    });
    const int left = region.x - static_cast<int>(columns.first);
    image.reshape({region.width, region.height}, static_cast<int>(columns.count), left);
    trap_.attempt([&] {
      skip_rows(state_, static_cast<JDIMENSION>(region.y), image.row(0) - 4 * left);
      for (int y = 0; y < region.height; ++y) {
        JSAMPROW row = image.row(y) - 4 * left;
        jpeg_read_scanlines(&state_, &row, 1);
        if (inks) inks_to_rgb(image.row(y), region.width);
      }
      check_end();
    });
  }

 private:
  /// A file is whole if it has its end marker, which entropy-coded data cannot contain.
  void check_end() {
    if (state_.output_scanline == state_.output_height) {
      jpeg_finish_decompress(&state_);  // reads on to the marker
      return;
    }
    const std::string_view rest(reinterpret_cast<const char*>(state_.src->next_input_byte),
                                state_.src->bytes_in_buffer);
    const bool ends = jpeg_input_complete(&state_) || state_.unread_marker == JPEG_EOI ||
                      rest.rfind("\xFF\xD9") != rest.npos;
    if (!ends) trap_.fail("the file ends early");
  }

  jpeg_error_mgr errors_{};
  jpeg_decompress_struct state_{};
  ErrorTrap trap_;
};

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
  void decode(Region region, Image& image) override {
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

constexpr std::array<std::uint8_t, 3> kJpegMagic{0xFF, 0xD8, 0xFF};
constexpr std::array<std::uint8_t, 8> kPngMagic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t N>
bool starts_with(std::span<const std::uint8_t> file, const std::array<std::uint8_t, N>& magic) {
  return file.size() >= N && std::equal(magic.begin(), magic.end(), file.begin());
}

}  // namespace

void Image::reshape(Size size, int row_pixels, int left) {
  size_ = size;
  first_ = std::size_t{4} * static_cast<std::size_t>(left);
  row_bytes_ = std::size_t{4} * static_cast<std::size_t>(row_pixels);
  const std::size_t bytes = row_bytes_ * static_cast<std::size_t>(size.height) + 4;
  if (bytes_.size() < bytes) bytes_.resize(bytes);
}

void Image::narrow(Region region) {
  first_ = offset(region.y) + std::size_t{4} * static_cast<std::size_t>(region.x);
  size_ = {region.width, region.height};
}

std::size_t rgb_bytes(Size size) {
  return std::size_t{3} * static_cast<std::size_t>(size.width) *
         static_cast<std::size_t>(size.height);
}

void copy_rgb(const Image& image, std::span<std::uint8_t> rgb) {
  const auto [width, height] = image.size();
  ENSURE(rgb.size() == rgb_bytes(image.size()), "size of the copy");
  std::uint8_t* to = rgb.data();
  for (int y = 0; y < height; ++y) {
    const std::uint8_t* from = image.row(y);
    for (int x = 1; x < width; ++x, from += 4, to += 3)
      std::memcpy(to, from, 4);  // the next pixel overwrites the fourth byte
    to = std::copy_n(from, 3, to);
  }
}

ImageDecoder::ImageDecoder()
    : jpeg_(std::make_unique<JpegDecoder>()), png_(std::make_unique<PngDecoder>()) {}
ImageDecoder::~ImageDecoder() = default;

Size ImageDecoder::open(std::span<const std::uint8_t> file) {
  opened_ = nullptr;
  FormatDecoder* const format = starts_with(file, kJpegMagic)  ? jpeg_.get()
                                : starts_with(file, kPngMagic) ? png_.get()
                                                               : nullptr;
  if (format == nullptr) throw UsageError("its content is neither JPEG nor PNG");
  size_ = format->open(file);
  opened_ = format;
  return size_;
}

const Image& ImageDecoder::decode(Region region) {
  ENSURE(opened_ != nullptr, "decode() without open()");
  ENSURE(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
             region.x + region.width <= size_.width && region.y + region.height <= size_.height,
         "a region outside the image");
  std::exchange(opened_, nullptr)->decode(region, image_);
  return image_;
}

}  // namespace shakedown::training
