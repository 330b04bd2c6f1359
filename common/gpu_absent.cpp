// Stands in for common/gpu where it is not built.
#include "common/backend.hpp"
#include "common/communicator.hpp"
#include "common/program.hpp"
#include "common/sm_clock.hpp"
#include "common/usage_error.hpp"

namespace shakedown::gpu {

bool built() { return false; }
std::vector<std::string> visible_devices(std::string& problem) {
  problem = "built without gpu";
  return {};
}
std::unique_ptr<Device> make_device(int, double) { throw UsageError("built without gpu"); }
std::unique_ptr<Communicator> make_communicator(const MpiSession&, Device&, int) {
  throw UsageError("built without gpu");
}
std::unique_ptr<Peers> make_peers(Communicator&, Device&, double) {
  throw UsageError("built without gpu");
}
void launch_hold_sms(HoldWords*, int, Stream&) { throw UsageError("built without gpu"); }
void launch_sm_stamp(SmStampCount*, SmStamp*, std::uint32_t, int, Stream&) {
  throw UsageError("built without gpu");
}
std::unique_ptr<PeerMemory> map_reachable(Communicator&, Device&, View) {
  throw UsageError("built without gpu");
}
void copy_of_peers(View, ConstView, CopyBy, Stream&) { throw UsageError("built without gpu"); }
std::vector<Library> libraries() { return {}; }

}  // namespace shakedown::gpu
