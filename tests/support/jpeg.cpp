#include "tests/support/jpeg.hpp"

#include <cstdio>
// jpeglib.h needs cstdio's FILE
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "common/hash.hpp"

namespace shakedown::test {

Picture picture_of(const training::Image& image) {
  Picture picture{image.size().width, image.size().height, {}};
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x)
      picture.values.insert(picture.values.end(), image.row(y) + 4 * x, image.row(y) + 4 * x + 3);
  return picture;
}

training::Image image_of(const Picture& picture) {
  training::Image image;
  image.reshape({picture.width, picture.height}, picture.width, 0);
  const std::uint8_t* value = picture.values.data();
  for (int y = 0; y < picture.height; ++y)
    for (int x = 0; x < picture.width; ++x, value += 3) std::copy_n(value, 3, image.row(y) + 4 * x);
  return image;
}

training::Image decode_image(std::span<const std::uint8_t> file) {
  training::ImageDecoder decoder;
  return decoder.decode(training::whole(decoder.open(file)));
}

Bytes write_jpeg(const Picture& picture, const JpegLayout& layout) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&state, &memory, &bytes);
  state.image_width = static_cast<JDIMENSION>(picture.width);
  state.image_height = static_cast<JDIMENSION>(picture.height);
  state.input_components = picture.channels;
  state.in_color_space = picture.channels == 1   ? JCS_GRAYSCALE
                         : picture.channels == 3 ? JCS_RGB
                                                 : JCS_CMYK;
  jpeg_set_defaults(&state);
  if (layout.gray) jpeg_set_colorspace(&state, JCS_GRAYSCALE);
  if (layout.stores_rgb) jpeg_set_colorspace(&state, JCS_RGB);
  jpeg_set_quality(&state, layout.quality, TRUE);
  if (layout.ycck) jpeg_set_colorspace(&state, JCS_YCCK);
  for (const int component : {0, 3})  // luminance and black
    if (component < state.num_components && state.num_components > 1 && !layout.stores_rgb) {
      state.comp_info[component].h_samp_factor = layout.luma_across;
      state.comp_info[component].v_samp_factor = layout.luma_down;
    }
  state.restart_interval = static_cast<unsigned>(layout.restart_interval);
  if (layout.progressive) jpeg_simple_progression(&state);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    const auto at =
        static_cast<std::size_t>(picture.channels) * state.image_width * state.next_scanline;
    JSAMPROW row = const_cast<JSAMPROW>(picture.values.data() + at);
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  Bytes file(memory, memory + bytes);
  jpeg_destroy_compress(&state);
  std::free(memory);
  return file;
}

Picture textured_image(int width, int height, std::uint64_t seed) {
  Random random(seed);
  struct Wave {
    double across, down, phase;
    std::array<double, 3> strength;
  };
  std::array<Wave, 4> waves{};
  for (Wave& wave : waves) {
    wave = {0.2 * random.uniform(), 0.2 * random.uniform(), 6 * random.uniform(), {}};
    for (double& strength : wave.strength) strength = 5 + 25 * random.uniform();
  }
  Picture picture{width, height, {}};
  picture.values.reserve(std::size_t{3} * static_cast<std::size_t>(width * height));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      std::array<double, 3> value{};
      value.fill(120 + 26 * (random.uniform() + random.uniform() - 1));
      for (const Wave& wave : waves) {
        const double height_here = std::sin(wave.across * x + wave.down * y + wave.phase);
        for (std::size_t c = 0; c < 3; ++c) value[c] += wave.strength[c] * height_here;
      }
      for (double v : value)
        picture.values.push_back(static_cast<std::uint8_t>(std::clamp(v, 0., 255.)));
    }
  return picture;
}

}  // namespace shakedown::test
