// Stands in for launch/node/soak/cpu where it is not built.
#include "common/usage_error.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::cpu {

std::unique_ptr<TileHasher> make_tile_hasher() { throw UsageError("built without cpu"); }
std::unique_ptr<SweepKernels> make_sweep_kernels(Device&) { throw UsageError("built without cpu"); }
std::unique_ptr<Probe> make_probe(Device&) { throw UsageError("built without cpu"); }

}  // namespace shakedown::node::cpu
