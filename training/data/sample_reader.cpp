#include "training/data/sample_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "common/hash.hpp"
#include "common/usage_error.hpp"
#include "training/data/codecs.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

SampleReader::Outcome SampleReader::read(std::size_t index, std::uint64_t random_seed,
                                         std::span<std::uint8_t> out, LeftToDevice* left) {
  for (std::size_t attempt = 0; attempt < source_.size(); ++attempt) {
    const std::size_t tried = source_.replacement(index, attempt);
    try {
      const bool left_to_decoder = read_image(tried, random_seed, out, left);
      return {source_.label(tried), left_to_decoder, tried};
    } catch (const UsageError& error) {
      bad_.note(source_, tried, error.what());
    }
  }
  throw UsageError(fmt::format("{}: all {} images are bad", source_.root(), source_.size()));
}

/// Whether it is left to the decoder. Throws UsageError with what is wrong with the image.
bool SampleReader::read_image(std::size_t index, std::uint64_t random_seed,
                              std::span<std::uint8_t> out, LeftToDevice* left) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  source_.read(index, encoded_, times_);
  Random random(random_seed);
  const DeviceDecoder* const decoder = left != nullptr ? left->decoder : nullptr;
  if (const auto size = decoder != nullptr ? size_for(*decoder) : std::nullopt) {
    left->encoded.crop = random_crop(*size, settings_, random);
    left->encoded.file.swap(encoded_);
    return true;
  }
  const auto start = Clock::now();
  Crop crop;
  const Image& image = decode(crop, random);
  const auto decoded = Clock::now();
  if (left != nullptr && left->crops != nullptr)
    left->decoded = place(image, crop.mirror, random, *left->crops);
  else
    transform_(image, crop.mirror, random, out);
  times_.decode_s += Seconds(decoded - start).count();
  times_.augment_s += Seconds(Clock::now() - decoded).count();
  return false;
}

DecodedCrop SampleReader::place(const Image& image, bool mirror, Random& random,
                                CropMemory& crops) {
  const auto [rgb, size] = crops.claim(image.size());
  const bool fits = size == image.size();
  if (fits)
    copy_rgb(image, rgb);
  else
    transform_(image, mirror, random, rgb);
  return {rgb, size, fits && mirror};
}

/// Of the encoded image, if the device may decode it.
std::optional<Size> SampleReader::size_for(const DeviceDecoder& decoder) const {
  if (settings_.exif && exif_orientation(encoded_) != 1) return {};
  return decoder.supports(encoded_) ? baseline_jpeg_size(encoded_) : std::nullopt;
}

/// Draws the crop and decodes its pixels.
const Image& SampleReader::decode(Crop& crop, Random& random) {
  const Size stored = decoder_.open(encoded_);
  const int orientation = settings_.exif ? exif_orientation(encoded_) : 1;
  crop = random_crop(upright(stored, orientation), settings_, random);
  const Region region = as_stored(crop.region, stored, orientation);
  const Image& image = decoder_.decode(region);
  if (orientation == 1) return image;
  turn_upright(image, orientation, turned_);
  return turned_;
}

Workers::Workers(int count) : size_(count) {
  if (count < 1) throw UsageError(fmt::format("--workers {}: at least 1 is needed", count));
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this, i] { run(i); });
  } catch (const std::system_error& error) {
    const std::size_t started = threads_.size();
    end();
    throw UsageError(fmt::format("--workers {}: only {} threads could be started: {}", count,
                                 started, error.code().message()));
  } catch (...) {  // no memory: those that were started would be waited for without end
    end();
    throw;
  }
}

Workers::~Workers() { end(); }

/// One notice for all: a stop token each would wake all of them for each one that ends.
void Workers::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  work_.notify_all();
}

void Workers::run(int worker) {
  std::unique_lock lock(mutex_);
  while (true) {
    Job* job = nullptr;
    work_.wait(lock, [&] { return ending_ || (job = next_job()) != nullptr; });
    if (ending_) return;
    job->work(worker, lock);
  }
}

Workers::Job* Workers::next_job() const {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [](const Job* job) { return job->has_work(); });
  return found == jobs_.end() ? nullptr : *found;
}

}  // namespace shakedown::training
