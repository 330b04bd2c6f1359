#include "training/data/crops.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/ensure.hpp"

namespace shakedown::training {
namespace {

// RandomResizedCrop leaves 244,000 bytes of 500x375 pixels on average, and in a batch of 256 hardly
// ever more than 267,000 per image.
constexpr std::size_t kUsualCrop = 288 << 10;

Size square_of(const DeviceDecoderSettings& settings) {
  return {settings.image_size, settings.image_size};
}

}  // namespace

std::size_t crop_memory_bytes(const DeviceDecoderSettings& settings) {
  return static_cast<std::size_t>(settings.most_images) *
         std::max(kUsualCrop, rgb_bytes(square_of(settings)));
}

CropMemory::CropMemory(std::span<std::uint8_t> memory, const DeviceDecoderSettings& settings)
    : memory_(memory),
      rows_(static_cast<std::size_t>(settings.most_images)),
      square_(square_of(settings)),
      rows_left_(rows_) {
  ENSURE(memory.size() >= rows_ * rgb_bytes(square_), "memory for each row's square");
}

CropMemory::Place CropMemory::claim(Size size) {
  const std::lock_guard lock(mutex_);
  ENSURE(rows_left_ > 0, "a place per row");
  --rows_left_;
  if (used_ + rgb_bytes(size) + rows_left_ * rgb_bytes(square_) > memory_.size()) size = square_;
  const std::size_t begin = used_;
  used_ += rgb_bytes(size);
  return {memory_.subspan(begin, rgb_bytes(size)), size};
}

std::span<const std::uint8_t> CropMemory::claimed() const {
  const std::lock_guard lock(mutex_);
  return memory_.first(used_);
}

void CropMemory::clear() {
  const std::lock_guard lock(mutex_);
  used_ = 0;
  rows_left_ = rows_;
}

DeviceCrops::DeviceCrops(Device& device, const DeviceDecoderSettings& settings,
                         std::unique_ptr<DeviceResizer> resizer)
    : device_(device), copied_(device, crop_memory_bytes(settings)), resizer_(std::move(resizer)) {}

void DeviceCrops::enqueue(std::span<const std::uint8_t> claimed, std::span<const DecodedCrop> crops,
                          std::uint8_t* batch, Stream& stream) {
  if (crops.empty()) return;
  ENSURE(claimed.size() <= copied_.bytes(), "memory of one batch");
  // RandomResizedCrop's ratios, of as many pixels as checked_size() allows, have fewer rows than
  // the resizer's 16,384.
  device_.copy(copied_.data(), claimed.data(), claimed.size(), stream);
  images_.clear();
  for (const DecodedCrop& crop : crops)
    images_.push_back(
        {static_cast<const std::uint8_t*>(copied_.data()) + (crop.rgb.data() - claimed.data()),
         std::size_t{3} * static_cast<std::size_t>(crop.size.width), whole(crop.size), crop.mirror,
         crop.row});
  resizer_->enqueue(images_, batch, stream);
}

std::size_t device_crops_bytes(BackendKind backend, const DeviceDecoderSettings& settings) {
  return backend == BackendKind::gpu
             ? crop_memory_bytes(settings) + gpu::device_resizer_bytes(settings)
             : 0;
}

std::unique_ptr<DeviceCrops> make_device_crops(Device& device,
                                               const DeviceDecoderSettings& settings) {
  if (device.kind() != BackendKind::gpu) return nullptr;
  return std::make_unique<DeviceCrops>(device, settings,
                                       gpu::make_device_resizer(device, settings));
}

std::size_t device_decoder_bytes(BackendKind backend, const DeviceDecoderSettings& settings) {
  return backend == BackendKind::gpu ? gpu::device_decoder_bytes(settings) : 0;
}

std::unique_ptr<DeviceDecoder> make_device_decoder(Device& device,
                                                   const DeviceDecoderSettings& settings,
                                                   std::string& why_not) {
  if (device.kind() == BackendKind::gpu) return gpu::make_device_decoder(device, settings, why_not);
  why_not = "the cpu backend has no device decoder";
  return nullptr;
}

}  // namespace shakedown::training
