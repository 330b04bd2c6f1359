// Stands in for resnet/gpu where it is not built.
#include "common/usage_error.hpp"
#include "resnet/units.hpp"

namespace shakedown::gpu {

std::unique_ptr<UnitFactory> make_units(const UnitContext&) {
  throw UsageError("built without gpu");
}

}  // namespace shakedown::gpu
