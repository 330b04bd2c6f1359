// Decoding image files to 8-bit RGB.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shakedown::training {

struct Image {
  int width = 0;
  int height = 0;
  std::vector<std::uint8_t> rgb;  // H W 3
};

/// Decodes the content of a JPEG or PNG file, recognised by its content, to what PIL's
/// convert("RGB") gives: alpha is dropped, CMYK is taken as Adobe's inverted inks, EXIF rotation
/// and PNG gamma are ignored. Of 16 bits the upper 8 are kept. Throws UsageError with what is wrong
/// with the file, which the caller names; a truncated file is an error, never a half grey image.
Image decode_image(std::span<const std::uint8_t> file);

}  // namespace shakedown::training
