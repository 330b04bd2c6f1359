// libFuzzer: JPEG and PNG files, and the headers of the former.
#include "training/data/image.hpp"

#include "common/usage_error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shakedown::training;
  const std::span file(data, size);
  baseline_jpeg_size(file);
  try {
    ImageDecoder decoder;
    const Size size = decoder.open(file);
    if (decoder.decode(whole(size)).size() != size) __builtin_trap();
  } catch (const shakedown::UsageError&) {
  }
  return 0;
}
