// The GPU's DeviceDecoder: JPEG engines fill the pixel memory, a kernel scales from it.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <future>

#include "common/error.hpp"
#include "training/data/backend.hpp"
#include "training/data/gpu/jpeg_engines.hpp"
#include "training/data/gpu/resize.hpp"
#include "training/data/jpeg_header.hpp"

namespace shakedown::gpu {
namespace {

using training::DeviceImage;
using training::EncodedImage;
using training::Undecoded;

// Measured on an H200 with 7 engines, images/s at 500x375: one decoder 18,400 at its best width,
// two 19,700, four to eight 12,000 to 16,000.
constexpr std::size_t kDecoders = 2;
constexpr std::size_t kUsualImage = 768 << 10;  // bytes of pixels: 500x375 has 563,000

std::size_t align(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
std::size_t pitch_of(training::Size size) {
  return align(3 * static_cast<std::size_t>(size.width), 64);
}
std::size_t pixel_bytes(training::Size size) {
  return align(pitch_of(size) * static_cast<std::size_t>(size.height), 256);
}
/// Of the largest image: of this many pixels with the longest padding of a row.
std::size_t most_pixel_bytes() {
  return align(3 * static_cast<std::size_t>(training::kMostDevicePixels) + 64 * 16384, 256);
}
/// Of a batch of usual images, and of any one.
std::size_t pixel_bytes_of(const training::DeviceDecoderSettings& settings) {
  return std::max(most_pixel_bytes(), static_cast<std::size_t>(settings.most_images) * kUsualImage);
}

class NvjpegDecoder final : public training::DeviceDecoder {
 public:
  NvjpegDecoder(Device& device, const training::DeviceDecoderSettings& settings,
                std::unique_ptr<JpegEngines> engines)
      : device_(device),
        most_images_(static_cast<std::size_t>(settings.most_images)),
        engines_(std::move(engines)),
        pixels_(device, pixel_bytes_of(settings)),
        resizer_(make_device_resizer(device, settings)) {
    for (auto& decoder : decoders_) decoder = std::make_unique<EngineDecoder>(device, *engines_);
  }

  bool supports(std::span<const std::uint8_t> file) const override {
    return size_of(file).has_value();
  }

  std::vector<Undecoded> decode(std::span<const EncodedImage> images, std::uint8_t* batch,
                                Stream& stream) override {
    ENSURE(images.size() <= most_images_, "images of a batch");
    std::vector<Undecoded> undecoded;
    while (!images.empty()) {
      resizer_->wait();  // until the pixels were read
      place(images);
      decode_placed();
      scale(images.first(pictures_.size()), batch, stream, undecoded);
      images = images.subspan(pictures_.size());
    }
    std::sort(undecoded.begin(), undecoded.end(),
              [](const Undecoded& a, const Undecoded& b) { return a.row < b.row; });
    return undecoded;
  }

 private:
  static std::optional<training::Size> size_of(std::span<const std::uint8_t> file) {
    const auto size = training::baseline_jpeg_size(file);
    const bool fits =
        size && std::int64_t{size->width} * size->height <= training::kMostDevicePixels;
    return fits ? size : std::nullopt;
  }

  /// Gives memory to this many of the images, from the first on, until it is full.
  void place(std::span<const EncodedImage> images) {
    pictures_.clear();
    std::size_t used = 0;
    for (const EncodedImage& image : images) {
      const auto size = size_of(image.file);
      ENSURE(size, "an image that the decoder supports");
      const auto& [x, y, width, height] = image.region;
      ENSURE(x >= 0 && y >= 0 && width > 0 && height > 0 && x + width <= size->width &&
                 y + height <= size->height,
             "a region of the image");
      const std::size_t needed = pixel_bytes(*size);
      if (used + needed > pixels_.bytes()) return;
      pictures_.push_back(
          {image.file, *size, static_cast<std::uint8_t*>(pixels_.data()) + used, pitch_of(*size)});
      used += needed;
    }
  }

  /// Both decoders fetch parts of the pictures until none is left: to the same pixels.
  void decode_placed() {
    const std::span<EnginePicture> pictures = pictures_;
    const auto width = static_cast<std::size_t>(engines_->width());
    std::atomic<std::size_t> next{0};
    const auto work = [&](EngineDecoder& decoder) {
      device_.use_on_this_thread();
      for (std::size_t begin; (begin = next.fetch_add(width)) < pictures.size();)
        decoder.decode(pictures.subspan(begin, std::min(width, pictures.size() - begin)));
    };
    std::future<void> others[kDecoders - 1];
    for (std::size_t d = 1; d < kDecoders; ++d)
      others[d - 1] = std::async(std::launch::async, work, std::ref(*decoders_[d]));
    work(*decoders_[0]);
    for (std::future<void>& other : others) other.get();
  }

  void scale(std::span<const EncodedImage> images, std::uint8_t* batch, Stream& stream,
             std::vector<Undecoded>& undecoded) {
    decoded_.clear();
    for (std::size_t i = 0; i < images.size(); ++i) {
      const EnginePicture& picture = pictures_[i];
      if (picture.result == Decoding::decoded)
        decoded_.push_back(
            {picture.rgb, picture.pitch, images[i].region, images[i].mirror, images[i].row});
      else
        undecoded.push_back({images[i].row, picture.result == Decoding::refused});
    }
    resizer_->enqueue(decoded_, batch, stream);
  }

  Device& device_;
  std::size_t most_images_;
  std::unique_ptr<JpegEngines> engines_;
  std::array<std::unique_ptr<EngineDecoder>, kDecoders> decoders_;
  Buffer pixels_;
  std::unique_ptr<training::DeviceResizer> resizer_;
  std::vector<EnginePicture> pictures_;
  std::vector<DeviceImage> decoded_;
};

}  // namespace

std::size_t device_decoder_bytes(const training::DeviceDecoderSettings& settings) {
  return pixel_bytes_of(settings) + device_resizer_bytes(settings) +
         kDecoders * JpegEngines::decoder_bytes();
}

std::unique_ptr<training::DeviceDecoder> make_device_decoder(
    Device& device, const training::DeviceDecoderSettings& settings, std::string& why_not) {
  std::unique_ptr<JpegEngines> engines = JpegEngines::open(why_not);
  if (engines == nullptr) return nullptr;
  return std::make_unique<NvjpegDecoder>(device, settings, std::move(engines));
}

}  // namespace shakedown::gpu
