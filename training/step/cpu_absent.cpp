// Stands in for training/step/cpu where it is not built.
#include "common/usage_error.hpp"
#include "training/step/update_kernels.hpp"

namespace shakedown::cpu {

std::unique_ptr<training::UpdateKernels> make_update_kernels() {
  throw UsageError("built without cpu");
}

}  // namespace shakedown::cpu
