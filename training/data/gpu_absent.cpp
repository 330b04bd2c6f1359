// Stands in for training/data/gpu where it is not built.
#include "common/usage_error.hpp"
#include "training/data/crops.hpp"

namespace shakedown::gpu {

std::unique_ptr<training::DeviceResizer> make_device_resizer(
    Device&, const training::DeviceDecoderSettings&) {
  throw UsageError("built without gpu");
}

std::size_t device_resizer_bytes(const training::DeviceDecoderSettings&) { return 0; }

std::size_t device_decoder_bytes(const training::DeviceDecoderSettings&) { return 0; }

std::unique_ptr<training::DeviceDecoder> make_device_decoder(Device&,
                                                             const training::DeviceDecoderSettings&,
                                                             std::string& why_not) {
  why_not = "built without gpu";
  return nullptr;
}

}  // namespace shakedown::gpu
