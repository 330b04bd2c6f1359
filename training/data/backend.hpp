// The backends' functions for images: defined in gpu/, and where that is not built in
// gpu_absent.cpp.
#pragma once

#include "training/data/crops.hpp"
#include "training/data/device_decoder.hpp"

namespace shakedown::gpu {

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
