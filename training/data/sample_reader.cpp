#include "training/data/sample_reader.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/error.hpp"
#include "common/random.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

std::int32_t SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                std::span<std::uint8_t> out) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Random random(random_seed);
  try {
    source_.read(index, encoded_, times_);
    const auto start = Clock::now();
    const Image image = decode_image(encoded_);
    const auto decoded = Clock::now();
    transform_(image, random, out);
    times_.decode_s += Seconds(decoded - start).count();
    times_.augment_s += Seconds(Clock::now() - decoded).count();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("image {}: {}", source_.name(index), error.what()));
  }
  return source_.label(index);
}

}  // namespace shakedown::training
