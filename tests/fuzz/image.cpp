// libFuzzer: JPEG and PNG files, and the headers of the former.
#include "training/data/image.hpp"

#include "common/usage_error.hpp"
#include "training/data/codecs.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shakedown::training;
  const std::span file(data, size);
  const int orientation = exif_orientation(file);
  if (orientation < 1 || orientation > 8) __builtin_trap();
  baseline_jpeg_size(file);
  try {
    ImageDecoder decoder;
    Image seen;
    const Size size = decoder.open(file);
    turn_upright(decoder.decode(whole(size)), orientation, seen);
    if (seen.size() != upright(size, orientation)) __builtin_trap();
  } catch (const shakedown::UsageError&) {
  }
  return 0;
}
