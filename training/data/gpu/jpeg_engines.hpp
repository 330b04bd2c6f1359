// Decoding on the GPU's JPEG engines, through nvJPEG.
#pragma once

#include <span>
#include <vector>

#include "training/data/device_decoder.hpp"
#include "training/data/gpu/idle_event.hpp"
#include "training/data/gpu/nvjpeg.hpp"

namespace shakedown::gpu {

/// What became of a picture: `refused` for its content, always; `failed` may pass.
enum class Decoding { failed, refused, decoded };

/// A file and the device memory for its pixels, which gives each row `pitch` bytes.
struct EnginePicture {
  std::span<const std::uint8_t> file;
  training::Size size;
  std::uint8_t* rgb;
  std::size_t pitch;
  Decoding result = Decoding::failed;
};

/// nvJPEG with the hardware backend, which has engines.
class JpegEngines {
 public:
  /// Null with the reason where the machine has none or nvJPEG cannot be had.
  static std::unique_ptr<JpegEngines> open(std::string& why_not);

  /// Device memory that nvJPEG allocates for one decoder of usual pictures, at most.
  static std::size_t decoder_bytes();
  /// Pictures that one call should decode.
  int width() const { return width_; }
  const Nvjpeg& library() const { return *library_; }
  Nvjpeg::Handle handle() const { return handle_.get(); }

 private:
  JpegEngines(std::shared_ptr<const Nvjpeg> library, Nvjpeg::Owned handle, int width)
      : library_(std::move(library)), handle_(std::move(handle)), width_(width) {}

  std::shared_ptr<const Nvjpeg> library_;
  Nvjpeg::Owned handle_;
  int width_;
};

/// One decoder of nvJPEG with its stream. One thread at a time.
class EngineDecoder {
 public:
  /// `engines` must outlive it.
  EngineDecoder(Device& device, const JpegEngines& engines);
  ~EngineDecoder();
  EngineDecoder(const EngineDecoder&) = delete;
  EngineDecoder& operator=(const EngineDecoder&) = delete;

  /// Decodes at most width() pictures and sets the result of each. Returns when the pixels of those
  /// that are decoded are written.
  void decode(std::span<EnginePicture> pictures);

 private:
  void attempt(std::span<EnginePicture> pictures);
  int submit(std::span<const EnginePicture> pictures);

  const JpegEngines& engines_;
  Nvjpeg::Owned state_;
  std::unique_ptr<Stream> stream_;
  IdleEvent done_;
  Buffer written_;  // a byte per picture, in pinned memory
  bool initialized_ = false;
  std::vector<const unsigned char*> files_;
  std::vector<std::size_t> bytes_;
  std::vector<Nvjpeg::Image> images_;
};

}  // namespace shakedown::gpu
