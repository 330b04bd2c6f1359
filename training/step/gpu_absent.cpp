// Stands in for training/step/gpu where it is not built.
#include "common/usage_error.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::gpu {

std::unique_ptr<training::UpdateKernels> make_update_kernels() {
  throw UsageError("built without gpu");
}

}  // namespace shakedown::gpu
