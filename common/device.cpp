#include "common/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/error.hpp"

namespace shakedown {

const char* name_of(BackendKind kind) { return kind == BackendKind::gpu ? "gpu" : "cpu"; }

std::unique_ptr<Graph> Device::capture(Stream&, const std::function<void()>&) {
  throw UsageError("CUDA graphs: the cpu backend has none");
}

bool Device::owns(const void* byte) const {
  const auto* at = static_cast<const std::byte*>(byte);
  const std::lock_guard lock(mutex_);
  const auto after = buffers_.upper_bound(at);
  if (after == buffers_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return at < begin + bytes;
}

Buffer::Buffer(Device& device, std::size_t bytes, Place place)
    : device_(&device), bytes_(bytes), place_(place) {
  if (bytes == 0) return;
  data_ = device.allocate(bytes, place);
  const std::lock_guard lock(device.mutex_);
  device.buffers_[static_cast<std::byte*>(data_)] = bytes;
  if (place == Place::device) {
    device.allocated_ += bytes;
    device.peak_ = std::max(device.peak_, device.allocated_);
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  {
    const std::lock_guard lock(device_->mutex_);
    device_->buffers_.erase(static_cast<std::byte*>(data_));
    if (place_ == Place::device) device_->allocated_ -= bytes_;
  }
  if (!device_->keeps_memory_) device_->release(data_, place_);
}

void Buffer::swap(Buffer& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(place_, other.place_);
}

void throw_device_timeout(double timeout_s, const std::string& cause) {
  throw TimeoutError(fmt::format("the device did not finish its work within {:g} s (--timeout): {}",
                                 timeout_s, cause));
}

}  // namespace shakedown
