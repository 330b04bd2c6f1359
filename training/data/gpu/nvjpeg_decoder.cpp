#include "training/data/backend.hpp"

namespace shakedown::gpu {

std::unique_ptr<training::DeviceDecoder> make_device_decoder(Device&,
                                                             const training::DeviceDecoderSettings&,
                                                             std::string& why_not) {
  why_not = "not written yet";
  return nullptr;
}

}  // namespace shakedown::gpu
