#include "training/data/device_decoder.hpp"

#include "training/data/backend.hpp"

namespace shakedown::training {

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
