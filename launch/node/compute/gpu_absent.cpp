// Stands in for launch/node/compute/gpu where it is not built.
#include "common/usage_error.hpp"
#include "launch/node/compute/kernels.hpp"

namespace shakedown::node::gpu {

std::vector<ProductType> product_types() { throw UsageError("built without gpu"); }
std::unique_ptr<Product> make_product(const ProductSpec&, Device&, Stream&, const std::string&) {
  throw UsageError("built without gpu");
}
std::unique_ptr<ComputeKernels> make_compute_kernels() { throw UsageError("built without gpu"); }

}  // namespace shakedown::node::gpu
