// What the backends do with images: declared here, defined in gpu/ and where that is not built in
// gpu_absent.cpp.
#pragma once

#include "training/data/device_decoder.hpp"

namespace shakedown::gpu {

/// Reports in `why_not` what is missing where it returns null.
std::unique_ptr<training::DeviceDecoder> make_device_decoder(
    Device& device, const training::DeviceDecoderSettings& settings, std::string& why_not);

}  // namespace shakedown::gpu
