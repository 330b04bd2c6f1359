// Crops as the host decodes them, which the device scales.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

// Decoding image files on the device that trains: the host's cores only read them.

struct EncodedImage {
  std::span<const std::uint8_t> file;  // host memory, valid until the stream has passed the work
  Region region;                       // in pixels of the decoded image
  bool mirror = false;
  int row = 0;  // in the batch
};

/// A row that the device did not decode.
struct Undecoded {
  int row = 0;
  bool refused = true;  // for the file's content, always; else the device failed, which may pass
  bool operator==(const Undecoded&) const = default;
};

/// One thread at a time, which uses the device (Device::use_on_this_thread).
class DeviceDecoder {
 public:
  virtual ~DeviceDecoder() = default;

  /// Whether decode() may get the file: complete baseline JPEG of 1 or 3 components and at most
  /// kMostDevicePixels. A function of the file's content alone.
  virtual bool supports(std::span<const std::uint8_t> file) const = 0;

  /// Decodes each image, scales its region to image_size x image_size as Resizer does and writes
  /// it, mirrored where requested, to its row of `batch` (device memory, N H W 3). Enqueues on
  /// `stream` what makes the rows ready, and may block the calling thread while the device decodes.
  /// Returns the rows that it did not decode, in ascending order: their pixels are undefined. The
  /// pixels differ from ImageDecoder's by the rounding of another decoder.
  virtual std::vector<Undecoded> decode(std::span<const EncodedImage> images, std::uint8_t* batch,
                                        Stream& stream) = 0;
};

struct DeviceDecoderSettings {
  int most_images;  // in one call of decode()
  int image_size;
};

/// Images of more pixels are left to the host: they would need too much device memory.
inline constexpr std::int64_t kMostDevicePixels = 1 << 24;

/// Device memory that such a decoder allocates, at most; 0 where the backend has none.
std::size_t device_decoder_bytes(BackendKind backend, const DeviceDecoderSettings& settings);

/// Null where there is none, with the reason in `why_not`. The device must outlive it.
std::unique_ptr<DeviceDecoder> make_device_decoder(Device& device,
                                                   const DeviceDecoderSettings& settings,
                                                   std::string& why_not);

/// The pixels of a crop in host memory.
struct DecodedCrop {
  std::span<const std::uint8_t> rgb;  // H W 3
  Size size{};
  bool mirror = false;
  int row = 0;  // in the batch
};

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

namespace shakedown::gpu {

// The backends' functions for images: defined in gpu/, and where that is not built in
// gpu_absent.cpp.

/// Throws UsageError where gpu was not built.
std::unique_ptr<training::DeviceResizer> make_device_resizer(
    Device& device, const training::DeviceDecoderSettings& settings);

/// Device memory that it allocates; 0 where gpu was not built.
std::size_t device_resizer_bytes(const training::DeviceDecoderSettings& settings);

/// 0 where gpu was not built.
std::size_t device_decoder_bytes(const training::DeviceDecoderSettings& settings);

/// Reports in `why_not` what is missing where it returns null.
std::unique_ptr<training::DeviceDecoder> make_device_decoder(
    Device& device, const training::DeviceDecoderSettings& settings, std::string& why_not);

}  // namespace shakedown::gpu
