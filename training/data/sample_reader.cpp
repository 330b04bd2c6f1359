#include "training/data/sample_reader.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/error.hpp"
#include "common/random.hpp"
#include "training/data/image.hpp"
#include "training/data/jpeg_header.hpp"

namespace shakedown::training {

std::int32_t SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                std::span<std::uint8_t> out) {
  fetch(index);
  decode(index, random_seed, out);
  return source_.label(index);
}

SampleReader::Outcome SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                         std::span<std::uint8_t> out, const DeviceDecoder& decoder,
                                         EncodedSample& encoded) {
  fetch(index);
  const auto size = decoder.supports(encoded_) ? baseline_jpeg_size(encoded_) : std::nullopt;
  if (size) {
    Random random(random_seed);
    encoded.crop = random_crop(*size, settings_, random);
    encoded.file.swap(encoded_);
  } else {
    decode(index, random_seed, out);
  }
  return {source_.label(index), size.has_value()};
}

/// Reads the encoded image.
void SampleReader::fetch(std::size_t index) {
  try {
    source_.read(index, encoded_, times_);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("image {}: {}", source_.name(index), error.what()));
  }
}

void SampleReader::decode(std::size_t index, std::uint64_t random_seed,
                          std::span<std::uint8_t> out) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Random random(random_seed);
  try {
    const auto start = Clock::now();
    const Crop crop = random_crop(decoder_.open(encoded_), settings_, random);
    const Size square{settings_.image_size, settings_.image_size};
    const Image& image = settings_.scaled_decode ? decoder_.decode(crop.region, square)
                                                 : decoder_.decode(crop.region);
    const auto decoded = Clock::now();
    transform_(image, crop.mirror, random, out);
    times_.decode_s += Seconds(decoded - start).count();
    times_.augment_s += Seconds(Clock::now() - decoded).count();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("image {}: {}", source_.name(index), error.what()));
  }
}

}  // namespace shakedown::training
