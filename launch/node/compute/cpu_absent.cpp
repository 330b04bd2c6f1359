// Stands in for launch/node/compute/cpu where it is not built.
#include "common/usage_error.hpp"
#include "launch/node/compute/product.hpp"
#include "launch/node/compute/stream_kernels.hpp"

namespace shakedown::node::cpu {

std::vector<ProductType> product_types() { throw UsageError("built without cpu"); }
std::unique_ptr<Product> make_product(const ProductSpec&, Device&, Stream&, const std::string&) {
  throw UsageError("built without cpu");
}
std::unique_ptr<Checksums> make_checksums() { throw UsageError("built without cpu"); }
std::unique_ptr<StreamKernels> make_stream_kernels() { throw UsageError("built without cpu"); }

}  // namespace shakedown::node::cpu
