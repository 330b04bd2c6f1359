// Writes the images of a source as one packed file (pack_format.hpp).
#pragma once

#include <functional>

#include "common/output_file.hpp"
#include "training/data/image_source.hpp"

namespace shakedown::training {

struct Packed {
  std::size_t images = 0;
  std::size_t classes = 0;
  std::uint64_t bytes = 0;  // of the images
  double seconds = 0;
};

/// Reads with this many threads. `progress` is called with the number of images written. The file
/// is there whole or not at all. Throws as write_file, UsageError naming a file that is no image's,
/// InconclusiveError naming an image that cannot be read.
Packed write_pack(const ImageSource& source, const Output& output, int threads,
                  const std::function<void(std::size_t)>& progress);

/// "6000 images of 10 classes, 0.65 GB in 1.3 s: 0.50 GB/s".
std::string text_of(const Packed& packed);

}  // namespace shakedown::training
