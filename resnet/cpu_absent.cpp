// Stands in for resnet/cpu where it is not built.
#include "common/usage_error.hpp"
#include "resnet/units.hpp"

namespace shakedown::cpu {

std::unique_ptr<UnitFactory> make_units(const UnitContext&) {
  throw UsageError("built without cpu");
}

}  // namespace shakedown::cpu
