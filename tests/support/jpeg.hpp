// JPEG files for tests, written by libjpeg.
#pragma once

#include <cstdint>
#include <vector>

#include "training/data/image.hpp"

namespace shakedown::test {

struct JpegLayout {
  int quality = 90;
  int luma_across = 2;  // sampling factors of the luminance: 4:2:0
  int luma_down = 2;
  bool gray = false;
  bool progressive = false;
  bool stores_rgb = false;   // without conversion to YCbCr
  int restart_interval = 0;  // in blocks of pixels
};

std::vector<std::uint8_t> write_jpeg(const training::Image& image, const JpegLayout& layout = {});

/// Waves and texture that differ by `seed`: at 500x375 and quality 90 about 80 KB, as a photograph.
training::Image textured_image(int width, int height, std::uint64_t seed);

}  // namespace shakedown::test
