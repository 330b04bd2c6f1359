// JPEG and PNG files: headers and pixels.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "training/data/image.hpp"

namespace shakedown::training {

// The header of a JPEG file, read without decoding.

/// The size of the image in a JPEG file that JPEG engines decode as libjpeg does: baseline in one
/// scan, 8 bits, gray or YCbCr of subsampling 4:4:4, 4:4:0, 4:2:2 or 4:2:0, at least 64 and at most
/// 16,384 pixels a side, with all segments whole and the mark of its end last. Nothing for any
/// other file. The entropy-coded data is not looked at.
std::optional<Size> baseline_jpeg_size(std::span<const std::uint8_t> file);

}  // namespace shakedown::training
