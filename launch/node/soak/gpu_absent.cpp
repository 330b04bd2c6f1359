// Stands in for launch/node/compute/gpu and launch/node/soak/gpu where they are not built.
#include "common/error.hpp"
#include "launch/node/compute/kernels.hpp"
#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/placing.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::gpu {

std::vector<ProductType> product_types() { throw UsageError("built without gpu"); }
std::unique_ptr<Product> make_product(const ProductSpec&, Device&, Stream&, const std::string&) {
  throw UsageError("built without gpu");
}
std::unique_ptr<ComputeKernels> make_compute_kernels() { throw UsageError("built without gpu"); }

std::unique_ptr<TileHasher> make_tile_hasher() { throw UsageError("built without gpu"); }
std::unique_ptr<SweepKernels> make_sweep_kernels(Device&) { throw UsageError("built without gpu"); }
void launch_hold_processor(HoldWords*, int, Stream&) { throw UsageError("built without gpu"); }
std::unique_ptr<Probe> make_probe(Device&) { throw UsageError("built without gpu"); }

}  // namespace shakedown::node::gpu
