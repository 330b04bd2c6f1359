// Only libjpeg's own interface: not every machine has TurboJPEG's. The order of its headers
// matters: jpeglib.h needs cstdio's FILE, and jerror.h's numbers depend on the version jpeglib.h
// sets.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "training/data/codec.hpp"

namespace shakedown::training {
namespace {

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

#ifdef JCS_EXTENSIONS
constexpr J_COLOR_SPACE kRgb = JCS_EXT_RGBX;
void widen(std::uint8_t*, int) {}
#else
constexpr J_COLOR_SPACE kRgb = JCS_RGB;
/// Moves pixels of three bytes to where those of four belong.
void widen(std::uint8_t* row, int width) {
  for (int x = width - 1; x > 0; --x)
    std::copy_backward(row + 3 * x, row + 3 * x + 3, row + 4 * x + 3);
}
#endif

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
/// (tested with libjpeg-turbo 2.0.6 to 3.2; of scaled images 2.x spoils some subsamplings).
Columns crop(jpeg_decompress_struct& state, Region needed) {
  constexpr int kMargin = 2;
  const int left = std::max(needed.x - kMargin, 0);
  const int right =
      std::min(needed.x + needed.width + kMargin, static_cast<int>(state.output_width));
  Columns columns{static_cast<JDIMENSION>(left), static_cast<JDIMENSION>(right - left)};
  if (columns.count == state.output_width || state.scale_denom > 1) return {0, state.output_width};
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

/// The largest denominator at which the region still has enough pixels.
unsigned scale_of(Region region, Size enough) {
  unsigned denominator = 1;
  while (denominator < 8 && region.width >= enough.width * 2 * static_cast<int>(denominator) &&
         region.height >= enough.height * 2 * static_cast<int>(denominator))
    denominator *= 2;
  return denominator;
}

/// The pixels of the scaled image that hold anything of the region.
Region scaled(Region region, int denominator) {
  const auto range = [&](int begin, int count) {
    const int first = begin / denominator;
    return std::pair{first, (begin + count + denominator - 1) / denominator - first};
  };
  const auto [x, width] = range(region.x, region.width);
  const auto [y, height] = range(region.y, region.height);
  return {x, y, width, height};
}

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

  void decode(Region region, Size enough, Image& image) override {
    const bool inks = state_.num_components == 4;  // CMYK or YCCK
    Columns columns{};
    trap_.attempt([&] {
      state_.out_color_space = inks ? JCS_CMYK : kRgb;
      state_.scale_num = 1;
      state_.scale_denom = scale_of(region, enough);
      jpeg_start_decompress(&state_);
      region = scaled(region, static_cast<int>(state_.scale_denom));
      columns = crop(state_, region);
    });
    const int left = region.x - static_cast<int>(columns.first);
    image.reshape({region.width, region.height}, static_cast<int>(columns.count), left);
    trap_.attempt([&] {
      skip_rows(state_, static_cast<JDIMENSION>(region.y), image.row(0) - 4 * left);
      for (int y = 0; y < region.height; ++y) {
        JSAMPROW row = image.row(y) - 4 * left;
        jpeg_read_scanlines(&state_, &row, 1);
        if (inks)
          inks_to_rgb(image.row(y), region.width);
        else
          widen(row, static_cast<int>(columns.count));
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

}  // namespace

std::unique_ptr<FormatDecoder> make_jpeg_decoder() { return std::make_unique<JpegDecoder>(); }

}  // namespace shakedown::training
