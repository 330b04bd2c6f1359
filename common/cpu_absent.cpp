// Stands in for common/cpu where it is not built.
#include "common/backend.hpp"
#include "common/error.hpp"

namespace shakedown::cpu {

bool built() { return false; }
std::unique_ptr<Device> make_device(int) { throw UsageError("built without cpu"); }
std::unique_ptr<Communicator> make_communicator(const MpiSession&, Device&, MpiAlgorithm) {
  throw UsageError("built without cpu");
}
std::vector<LibraryVersion> library_versions() { return {}; }

}  // namespace shakedown::cpu
