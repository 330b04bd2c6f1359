// The orientation of a photograph that its camera noted.
#pragma once

#include <cstdint>
#include <span>

#include "training/data/image.hpp"

namespace shakedown::training {

/// EXIF's orientation of a JPEG file, 1 to 8; 1, upright, where it has none or it makes no sense.
int exif_orientation(std::span<const std::uint8_t> file);

/// The image as it is to be seen: mirrored and rotated as PIL's exif_transpose does.
Image upright(Image image, int orientation);

}  // namespace shakedown::training
