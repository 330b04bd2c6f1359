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

struct JpegReader {
  JpegReader() {
    state.err = jpeg_std_error(&errors);
    errors.error_exit = on_error;
    errors.emit_message = on_message;
    state.client_data = &trap;
  }
  ~JpegReader() { jpeg_destroy_decompress(&state); }  // harmless on a state never created
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  jpeg_error_mgr errors{};
  jpeg_decompress_struct state{};
  ErrorTrap trap;
};

/// Inverted inks, as Adobe writes them, over white paper: each is a transmittance of 0..255.
void inks_to_rgb(const std::uint8_t* cmyk, int width, std::uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3)
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<std::uint8_t>((cmyk[c] * cmyk[3] + 127) / 255);
}

}  // namespace

Image decode_jpeg(std::span<const std::uint8_t> file) {
  JpegReader reader;
  jpeg_decompress_struct& state = reader.state;
  reader.trap.attempt([&] {
    jpeg_create_decompress(&state);
    jpeg_mem_src(&state, file.data(), file.size());
    jpeg_read_header(&state, TRUE);
  });
  const bool inks = state.num_components == 4;  // CMYK or YCCK
  state.out_color_space = inks ? JCS_CMYK : JCS_RGB;

  Image image = blank_image(state.image_width, state.image_height);
  std::vector<std::uint8_t> ink_row(inks ? std::size_t{4} * state.image_width : 0);
  reader.trap.attempt([&] {
    jpeg_start_decompress(&state);
    while (state.output_scanline < state.output_height) {
      const std::size_t y = state.output_scanline;
      std::uint8_t* const rgb_row = image.rgb.data() + 3 * y * state.output_width;
      JSAMPROW row = inks ? ink_row.data() : rgb_row;
      jpeg_read_scanlines(&state, &row, 1);
      if (inks) inks_to_rgb(row, image.width, rgb_row);
    }
    jpeg_finish_decompress(&state);
  });
  return image;
}

}  // namespace shakedown::training
