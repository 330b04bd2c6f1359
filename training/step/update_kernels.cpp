#include "training/step/update_kernels.hpp"

#include "common/device.hpp"

namespace shakedown::training {

std::unique_ptr<UpdateKernels> make_update_kernels(const Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_update_kernels()
                                           : cpu::make_update_kernels();
}

}  // namespace shakedown::training
