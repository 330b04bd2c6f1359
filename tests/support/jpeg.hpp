// Pixels for tests, and JPEG files of them written by libjpeg.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/image.hpp"

namespace shakedown::test {

using Bytes = std::vector<std::uint8_t>;

/// Channels without padding: 1 gray, 3 RGB, 4 inks.
struct Picture {
  int width = 0;
  int height = 0;
  Bytes values;
  int channels = 3;
};

/// The pixels of the image without their fourth byte.
Picture picture_of(const training::Image& image);
/// Of three channels.
training::Image image_of(const Picture& picture);
/// The whole image of a file.
training::Image decode_image(std::span<const std::uint8_t> file);

struct JpegLayout {
  int quality = 90;
  int luma_across = 2;  // sampling factors of the luminance: 4:2:0
  int luma_down = 2;
  bool gray = false;
  bool progressive = false;
  bool stores_rgb = false;   // without conversion to YCbCr
  bool ycck = false;         // inks converted as well
  int restart_interval = 0;  // in blocks of pixels
};

Bytes write_jpeg(const Picture& picture, const JpegLayout& layout = {});

/// Waves and texture that differ by `seed`: at 500x375 and quality 90 about 80 KB, as a photograph.
Picture textured_image(int width, int height, std::uint64_t seed);

}  // namespace shakedown::test
