// Stands in for collectives/cpu where it is not built.
#include "collectives/verifier.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives::cpu {

std::unique_ptr<Verifier> make_verifier() { throw UsageError("built without cpu"); }

}  // namespace shakedown::collectives::cpu
