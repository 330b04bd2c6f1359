#include "training/data/sample_reader.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/error.hpp"
#include "common/random.hpp"
#include "training/data/image.hpp"
#include "training/data/jpeg_header.hpp"

namespace shakedown::training {

SampleReader::Outcome SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                         std::span<std::uint8_t> out, const DeviceDecoder* decoder,
                                         EncodedSample* encoded) {
  try {
    const bool left = read_image(index, random_seed, out, decoder, encoded);
    return {source_.label(index), left};
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("image {}: {}", source_.name(index), error.what()));
  }
}

/// Whether it is left to the decoder. Throws UsageError with what is wrong with the image.
bool SampleReader::read_image(std::size_t index, std::uint64_t random_seed,
                              std::span<std::uint8_t> out, const DeviceDecoder* decoder,
                              EncodedSample* encoded) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  source_.read(index, encoded_, times_);
  if (decoder != nullptr && leave_to(*decoder, random_seed, *encoded)) return true;
  Random random(random_seed);
  const auto start = Clock::now();
  const Crop crop = random_crop(decoder_.open(encoded_), settings_, random);
  const Size square{settings_.image_size, settings_.image_size};
  const Image& image = settings_.scaled_decode ? decoder_.decode(crop.region, square)
                                               : decoder_.decode(crop.region);
  const auto decoded = Clock::now();
  transform_(image, crop.mirror, random, out);
  times_.decode_s += Seconds(decoded - start).count();
  times_.augment_s += Seconds(Clock::now() - decoded).count();
  return false;
}

bool SampleReader::leave_to(const DeviceDecoder& decoder, std::uint64_t random_seed,
                            EncodedSample& encoded) {
  const auto size = decoder.supports(encoded_) ? baseline_jpeg_size(encoded_) : std::nullopt;
  if (!size) return false;
  Random random(random_seed);
  encoded.crop = random_crop(*size, settings_, random);
  encoded.file.swap(encoded_);
  return true;
}

}  // namespace shakedown::training
