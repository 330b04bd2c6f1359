// Decoding image files on the device that trains: the host's cores only read them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device.hpp"
#include "training/data/image.hpp"

namespace shakedown::training {

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

}  // namespace shakedown::training
