// Stands in for training/data/gpu where it is not built.
#include "training/data/backend.hpp"

namespace shakedown::gpu {

std::unique_ptr<training::DeviceDecoder> make_device_decoder(Device&,
                                                             const training::DeviceDecoderSettings&,
                                                             std::string& why_not) {
  why_not = "built without gpu";
  return nullptr;
}

}  // namespace shakedown::gpu
