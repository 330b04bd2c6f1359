// Stands in for common/cpu where it is not built.
#include "common/backend.hpp"
#include "common/usage_error.hpp"

namespace shakedown::cpu {

bool built() { return false; }
std::unique_ptr<Device> make_device(int) { throw UsageError("built without cpu"); }
std::vector<Library> libraries() { return {}; }

}  // namespace shakedown::cpu
