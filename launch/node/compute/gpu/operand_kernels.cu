#include "launch/node/compute/gpu/operand_kernels.hpp"

#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "launch/node/compute/gpu/elements.cuh"

namespace shakedown::node::gpu {
namespace {

template <class Bits>
__global__ void fill_operand_kernel(Bits* x, std::size_t count, OperandRule rule) {
  for (std::size_t i = global_thread(); i < count; i += grid_threads())
    x[i] = static_cast<Bits>(operand_bits(rule, i));
}

}  // namespace

void fill_operand(View x, const OperandRule& rule, cudaStream_t stream) {
  const auto launch = [&]<class Bits>(Bits) {
    fill_operand_kernel<<<blocks_for(x.count), kThreads, 0, stream>>>(static_cast<Bits*>(x.data),
                                                                      x.count, rule);
  };
  switch (size_of(x.type)) {
    case 1: launch(std::uint8_t{}); break;
    case 2: launch(std::uint16_t{}); break;
    case 4: launch(std::uint32_t{}); break;
    default: launch(std::uint64_t{});
  }
  CHECK_LAUNCH();
}

}  // namespace shakedown::node::gpu
