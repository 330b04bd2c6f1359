#include "common/device.hpp"

#include <algorithm>
#include <utility>

#include "common/error.hpp"

namespace shakedown {

const char* name_of(BackendKind kind) { return kind == BackendKind::gpu ? "gpu" : "cpu"; }

std::unique_ptr<Graph> Device::capture(Stream&, const std::function<void()>&) {
  throw UsageError("CUDA graphs: the cpu backend has none");
}

Buffer::Buffer(Device& device, std::size_t bytes, Place place)
    : device_(&device), bytes_(bytes), place_(place) {
  if (bytes == 0) return;
  data_ = device.allocate(bytes, place);
  if (place == Place::device) {
    device.allocated_ += bytes;
    device.peak_ = std::max(device.peak_, device.allocated_);
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  device_->release(data_, place_);
  if (place_ == Place::device) device_->allocated_ -= bytes_;
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(place_, other.place_);
}

}  // namespace shakedown
