#include "tests/support/jpeg.hpp"

#include <cstdio>
// jpeglib.h needs cstdio's FILE
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "common/random.hpp"

namespace shakedown::test {

std::vector<std::uint8_t> write_jpeg(const training::Image& image, const JpegLayout& layout) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&state, &memory, &bytes);
  state.image_width = static_cast<JDIMENSION>(image.width);
  state.image_height = static_cast<JDIMENSION>(image.height);
  state.input_components = 3;
  state.in_color_space = JCS_RGB;
  jpeg_set_defaults(&state);
  if (layout.gray) jpeg_set_colorspace(&state, JCS_GRAYSCALE);
  if (layout.stores_rgb) jpeg_set_colorspace(&state, JCS_RGB);
  jpeg_set_quality(&state, layout.quality, TRUE);
  if (!layout.gray && !layout.stores_rgb) {
    state.comp_info[0].h_samp_factor = layout.luma_across;
    state.comp_info[0].v_samp_factor = layout.luma_down;
  }
  state.restart_interval = static_cast<unsigned>(layout.restart_interval);
  if (layout.progressive) jpeg_simple_progression(&state);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    const auto at = std::size_t{3} * state.image_width * state.next_scanline;
    JSAMPROW row = const_cast<JSAMPROW>(image.rgb.data() + at);
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  std::vector<std::uint8_t> file(memory, memory + bytes);
  jpeg_destroy_compress(&state);
  std::free(memory);
  return file;
}

training::Image textured_image(int width, int height, std::uint64_t seed) {
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
  training::Image image{width, height, {}};
  image.rgb.reserve(std::size_t{3} * static_cast<std::size_t>(width * height));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x) {
      std::array<double, 3> value{};
      value.fill(120 + 26 * (random.uniform() + random.uniform() - 1));
      for (const Wave& wave : waves) {
        const double height_here = std::sin(wave.across * x + wave.down * y + wave.phase);
        for (std::size_t c = 0; c < 3; ++c) value[c] += wave.strength[c] * height_here;
      }
      for (double v : value)
        image.rgb.push_back(static_cast<std::uint8_t>(std::clamp(v, 0., 255.)));
    }
  return image;
}

}  // namespace shakedown::test
