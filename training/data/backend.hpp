// The backends' functions for images: defined in gpu/, and where that is not built in
// gpu_absent.cpp.
#pragma once

#include "training/data/device_decoder.hpp"

namespace shakedown::training {

/// An image in device memory, the part of it that is scaled, and the row of the batch that it goes
/// to.
struct DeviceImage {
  const std::uint8_t* rgb;  // H W 3
  std::size_t pitch;        // bytes from row to row
  Region region;
  bool mirror;
  int row;
};

/// Scales images on the device, bit for bit as Resizer does. One thread at a time.
class DeviceResizer {
 public:
  virtual ~DeviceResizer() = default;
  /// Enqueues the scaling of each region to image_size x image_size and its writing to a row of
  /// `batch`, N H W 3. At most most_images, of at most 16,384 rows each.
  virtual void enqueue(std::span<const DeviceImage> images, std::uint8_t* batch,
                       Stream& stream) = 0;
  /// Blocks until the device has read the images of all earlier calls.
  virtual void wait() = 0;
};

}  // namespace shakedown::training

namespace shakedown::gpu {

/// Throws UsageError where gpu was not built.
std::unique_ptr<training::DeviceResizer> make_device_resizer(
    Device& device, const training::DeviceDecoderSettings& settings);

/// 0 where gpu was not built.
std::size_t device_decoder_bytes(const training::DeviceDecoderSettings& settings);

/// Reports in `why_not` what is missing where it returns null.
std::unique_ptr<training::DeviceDecoder> make_device_decoder(
    Device& device, const training::DeviceDecoderSettings& settings, std::string& why_not);

}  // namespace shakedown::gpu
