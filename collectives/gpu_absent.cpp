// Stands in for collectives/gpu where it is not built.
#include "collectives/verifier.hpp"
#include "common/usage_error.hpp"

namespace shakedown::collectives::gpu {

std::unique_ptr<Verifier> make_verifier() { throw UsageError("built without gpu"); }

}  // namespace shakedown::collectives::gpu
