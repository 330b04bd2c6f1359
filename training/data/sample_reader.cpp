#include "training/data/sample_reader.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/error.hpp"
#include "common/random.hpp"
#include "training/data/exif.hpp"
#include "training/data/image.hpp"
#include "training/data/jpeg_header.hpp"

namespace shakedown::training {

std::int32_t SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                std::span<std::uint8_t> out) {
  return source_.label(first_good(index, [&] { decode(random_seed, out); }));
}

SampleReader::Outcome SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                         std::span<std::uint8_t> out, const DeviceDecoder& decoder,
                                         EncodedSample& encoded) {
  std::optional<Size> size;
  const std::size_t used = first_good(index, [&] {
    size = size_for(decoder);
    if (!size) decode(random_seed, out);
  });
  if (size) {
    Random random(random_seed);
    encoded.crop = random_crop(*size, settings_, random);
    encoded.file.swap(encoded_);
  }
  return {source_.label(used), size.has_value()};
}

std::size_t SampleReader::first_good(std::size_t index, const std::function<void()>& make) {
  for (std::size_t attempt = 0; attempt < source_.size(); ++attempt) {
    const std::size_t tried = source_.replacement(index, attempt);
    try {
      source_.read(tried, encoded_, times_);
      make();
      return tried;
    } catch (const UsageError& error) {
      bad_.note(source_, tried, error.what());
    }
  }
  throw UsageError(fmt::format("{}: all {} images are bad", source_.root(), source_.size()));
}

std::optional<Size> SampleReader::size_for(const DeviceDecoder& decoder) const {
  if (settings_.exif && exif_orientation(encoded_) != 1) return {};
  return decoder.supports(encoded_) ? baseline_jpeg_size(encoded_) : std::nullopt;
}

void SampleReader::decode(std::uint64_t random_seed, std::span<std::uint8_t> out) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Random random(random_seed);
  const auto start = Clock::now();
  Image image = decode_image(encoded_);
  if (settings_.exif) image = upright(std::move(image), exif_orientation(encoded_));
  const auto decoded = Clock::now();
  transform_(image, random, out);
  times_.decode_s += Seconds(decoded - start).count();
  times_.augment_s += Seconds(Clock::now() - decoded).count();
}

}  // namespace shakedown::training
