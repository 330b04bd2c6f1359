// The orientation of a photograph that its camera noted.
#pragma once

#include <cstdint>
#include <span>

#include "training/data/image.hpp"

namespace shakedown::training {

/// The orientation of a JPEG or PNG file, 1 to 8, in its EXIF data or, where these have none, its
/// XMP; 1, upright, where it has none or it makes no sense.
int exif_orientation(std::span<const std::uint8_t> file);

// PIL's exif_transpose, for a stored image of an orientation.

/// The size that the image is seen in.
Size upright(Size stored, int orientation);
/// The pixels of the stored image that are seen as `seen`.
Region as_stored(Region seen, Size stored, int orientation);
/// The pixels as they are seen: mirrored and rotated.
void turn_upright(const Image& stored, int orientation, Image& seen);

}  // namespace shakedown::training
