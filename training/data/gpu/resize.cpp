// The GPU's Resizer: memory and launches of the kernels in resize.cu.
#include "training/data/gpu/resize.hpp"

#include <algorithm>

#include "common/ensure.hpp"
#include "common/gpu/native.hpp"
#include "training/data/crops.hpp"

namespace shakedown::gpu {
namespace {

using training::DeviceImage;

constexpr std::size_t kTallest = 16384;     // of one region
constexpr std::size_t kRowsPerImage = 512;  // of a usual one

std::size_t align(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::size_t row_bytes_of(int size) { return 3 * static_cast<std::size_t>(size); }

std::size_t table_bytes(const training::DeviceDecoderSettings& settings) {
  return static_cast<std::size_t>(settings.most_images) * sizeof(ScaledRegion);
}

/// Enough for a batch of usual images, and for any one.
std::size_t scratch_bytes(const training::DeviceDecoderSettings& settings) {
  const int size = settings.image_size;
  const auto tallest = static_cast<int>(kTallest);
  const std::size_t one = align(kTallest * row_bytes_of(size)) +
                          2 * align(filter_words(tallest, size) * sizeof(std::int32_t));
  return std::max(
      one, static_cast<std::size_t>(settings.most_images) * kRowsPerImage * row_bytes_of(size));
}

class GpuResizer final : public training::DeviceResizer {
 public:
  GpuResizer(Device& device, const training::DeviceDecoderSettings& settings)
      : device_(device),
        size_(settings.image_size),
        most_images_(static_cast<std::size_t>(settings.most_images)),
        table_(device, table_bytes(settings)),
        host_table_(device, table_.bytes(), Place::host),
        scratch_(device, scratch_bytes(settings)) {}

  void enqueue(std::span<const DeviceImage> images, std::uint8_t* batch, Stream& stream) override {
    ENSURE(images.size() <= most_images_, "images of a batch");
    wait();  // for the table's last copy
    ScaledRegion* const host = static_cast<ScaledRegion*>(host_table_.data());
    std::size_t begin = 0;  // of the images that the scratch memory holds at once
    std::size_t used = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      const std::size_t needed = bytes_of(images[i]);
      if (used + needed > scratch_.bytes()) {
        launch(begin, i, stream);
        begin = i;
        used = 0;
      }
      host[i] = region_of(images[i], batch, static_cast<std::byte*>(scratch_.data()) + used);
      used += needed;
    }
    launch(begin, images.size(), stream);
    done_.record(native(stream));
  }

  void wait() override { done_.wait(); }

 private:
  std::size_t row_bytes() const { return row_bytes_of(size_); }

  std::size_t bytes_of(const DeviceImage& image) const {
    const auto filter = [&](int from) {
      return align(filter_words(from, size_) * sizeof(std::int32_t));
    };
    return filter(image.region.width) + filter(image.region.height) +
           align(static_cast<std::size_t>(image.region.height) * row_bytes());
  }

  ScaledRegion region_of(const DeviceImage& image, std::uint8_t* batch, std::byte* scratch) const {
    const auto& [x, y, width, height] = image.region;
    const auto take = [&](std::size_t bytes) {
      std::byte* const taken = scratch;
      scratch += align(bytes);
      return taken;
    };
    ScaledRegion region{};
    region.rgb = image.rgb + static_cast<std::size_t>(y) * image.pitch + 3 * x;
    region.pitch = image.pitch;
    region.width = width;
    region.height = height;
    region.across = reinterpret_cast<std::int32_t*>(take(filter_words(width, size_) * 4));
    region.down = reinterpret_cast<std::int32_t*>(take(filter_words(height, size_) * 4));
    region.rows =
        reinterpret_cast<std::uint8_t*>(take(static_cast<std::size_t>(height) * row_bytes()));
    region.out =
        batch + static_cast<std::size_t>(image.row) * static_cast<std::size_t>(size_) * row_bytes();
    region.mirror = image.mirror;
    return region;
  }

  /// The images [begin, end) of the table.
  void launch(std::size_t begin, std::size_t end, Stream& stream) {
    if (begin == end) return;
    const ScaledRegion* const host = static_cast<const ScaledRegion*>(host_table_.data());
    ScaledRegion* const regions = static_cast<ScaledRegion*>(table_.data()) + begin;
    device_.copy(regions, host + begin, (end - begin) * sizeof(ScaledRegion), stream);
    int tallest = 0;
    for (std::size_t i = begin; i < end; ++i) tallest = std::max(tallest, host[i].height);
    scale_regions({regions, end - begin}, tallest, size_, native(stream));
  }

  Device& device_;
  int size_;
  std::size_t most_images_;
  Buffer table_;
  Buffer host_table_;
  Buffer scratch_;
  IdleEvent done_;
};

}  // namespace

std::size_t device_resizer_bytes(const training::DeviceDecoderSettings& settings) {
  return table_bytes(settings) + scratch_bytes(settings);
}

std::unique_ptr<training::DeviceResizer> make_device_resizer(
    Device& device, const training::DeviceDecoderSettings& settings) {
  return std::make_unique<GpuResizer>(device, settings);
}

}  // namespace shakedown::gpu
