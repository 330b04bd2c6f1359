// Stands in for launch/node/soak/gpu where it is not built.
#include "common/usage_error.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::gpu {

std::unique_ptr<TileHasher> make_tile_hasher() { throw UsageError("built without gpu"); }
std::unique_ptr<SweepKernels> make_sweep_kernels(Device&) { throw UsageError("built without gpu"); }
void launch_hold_processor(HoldWords*, int, Stream&) { throw UsageError("built without gpu"); }
std::unique_ptr<Probe> make_probe(Device&) { throw UsageError("built without gpu"); }

}  // namespace shakedown::node::gpu
