// Crops as the host decodes them, which the device scales.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/device.hpp"
#include "training/data/device_decoder.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

/// The pixels of a crop in host memory.
struct DecodedCrop {
  std::span<const std::uint8_t> rgb;  // H W 3
  Size size{};
  bool mirror = false;
  int row = 0;  // in the batch
};

/// Bytes of that many pixels, H W 3.
std::size_t rgb_bytes(Size size);
/// Leaves out the fourth byte of each pixel.
void copy_rgb(const Image& image, std::span<std::uint8_t> rgb);

/// Memory for the crops of a batch, one after another in any order: for usual crops, and for at
/// least the scaled square of each row.
std::size_t crop_memory_bytes(const DeviceDecoderSettings& settings);

/// Gives the crops of a batch their places in such memory. For any thread: which of them fit may
/// depend on timing.
class CropMemory {
 public:
  CropMemory(std::span<std::uint8_t> memory, const DeviceDecoderSettings& settings);

  struct Place {
    std::span<std::uint8_t> rgb;
    Size size;
  };
  /// A row's place, at most once per row: of this size, or of the scaled square where the larger
  /// one would leave less than that to another row.
  Place claim(Size size);
  Place claim_square() { return claim(square_); }
  /// From the first byte to the last one claimed.
  std::span<const std::uint8_t> claimed() const;
  /// Takes all places back.
  void clear();

 private:
  const std::span<std::uint8_t> memory_;
  const std::size_t rows_;
  const Size square_;
  mutable std::mutex mutex_;  // guards the rest
  std::size_t used_ = 0;
  std::size_t rows_left_;
};

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
  /// `batch`, N H W 3. At most most_images, of at most 16,384 rows each. Waits for earlier calls.
  virtual void enqueue(std::span<const DeviceImage> images, std::uint8_t* batch,
                       Stream& stream) = 0;
  /// Blocks until the device has read the images of all earlier calls.
  virtual void wait() = 0;
};

/// Scales the crops of one batch after another, on one stream. The device must outlive it.
class DeviceCrops {
 public:
  DeviceCrops(Device& device, const DeviceDecoderSettings& settings,
              std::unique_ptr<DeviceResizer> resizer);

  /// Enqueues the copy of `claimed`, which holds the crops, and their scaling to rows of `batch`
  /// (device memory, N H W 3), with the host's pixels.
  void enqueue(std::span<const std::uint8_t> claimed, std::span<const DecodedCrop> crops,
               std::uint8_t* batch, Stream& stream);

 private:
  Device& device_;
  Buffer copied_;
  std::unique_ptr<DeviceResizer> resizer_;
  std::vector<DeviceImage> images_;
};

/// Device memory that it allocates; 0 where the backend does not scale.
std::size_t device_crops_bytes(BackendKind backend, const DeviceDecoderSettings& settings);
/// Null where the backend does not scale.
std::unique_ptr<DeviceCrops> make_device_crops(Device& device,
                                               const DeviceDecoderSettings& settings);

}  // namespace shakedown::training
