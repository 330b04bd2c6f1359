#include "collectives/verifier.hpp"

#include <algorithm>

#include "common/gpu/native.hpp"

namespace shakedown::collectives::gpu {
namespace {

constexpr int kThreads = 256;

/// Blocks of a grid-stride loop: enough to fill any GPU, few where there is little to do.
unsigned blocks_for(std::size_t count) {
  const std::size_t wanted = (count + kThreads - 1) / kThreads;
  return static_cast<unsigned>(std::clamp<std::size_t>(wanted, 1, 4096));
}

__device__ std::size_t global_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::size_t grid_threads() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

template <class Bits>
__global__ void fill_kernel(Bits* to, std::size_t count, Operands o, int rank,
                            std::uint64_t first) {
  for (std::size_t i = global_thread(); i < count; i += grid_threads())
    to[i] = static_cast<Bits>(operands::input_bits(o, rank, first + i));
}

/// A thread's work is a 16-byte unit.
template <class Bits>
__global__ void check_kernel(const Bits* found, std::size_t count, Operands o, int source,
                             std::uint64_t first, std::uint64_t index, Mismatches* result) {
  const std::size_t units = (count + kElementsOfUnit<Bits> - 1) / kElementsOfUnit<Bits>;
  for (std::size_t u = global_thread(); u < units; u += grid_threads()) {
    const WrongInUnit unit = check_unit(found, count, u, o, source, first);
    if (unit.count == 0) continue;
    atomicAdd(&result->wrong, static_cast<unsigned long long>(unit.count));
    atomicMin(&result->first, static_cast<unsigned long long>(index + unit.first));
    atomicMax(&result->last, static_cast<unsigned long long>(index + unit.last));
  }
}

/// Host memory from Communicator::allocate is pinned, which kernels reach by the same address.
class CudaVerifier final : public Verifier {
 public:
  void fill(View to, const Operands& operands, int rank, std::uint64_t first,
            Stream& stream) const override {
    if (to.count == 0) return;
    with_width(to.type, [&]<class Bits>(Bits) {
      fill_kernel<<<blocks_for(to.count), kThreads, 0, shakedown::gpu::native(stream)>>>(
          static_cast<Bits*>(to.data), to.count, operands, rank, first);
    });
    CHECK_LAUNCH();
  }

  void poison(View to, Stream& stream) const override {
    if (to.count > 0)
      CHECK_CUDA(cudaMemsetAsync(to.data, 0xFF, to.bytes(), shakedown::gpu::native(stream)));
  }

  void check(ConstView found, const Operands& operands, int source, std::uint64_t first,
             std::uint64_t index, Mismatches* result, Stream& stream) const override {
    if (found.count == 0) return;
    with_width(found.type, [&]<class Bits>(Bits) {
      const std::size_t units = (found.count + kElementsOfUnit<Bits> - 1) / kElementsOfUnit<Bits>;
      check_kernel<<<blocks_for(units), kThreads, 0, shakedown::gpu::native(stream)>>>(
          static_cast<const Bits*>(found.data), found.count, operands, source, first, index,
          result);
    });
    CHECK_LAUNCH();
  }
};

}  // namespace

std::unique_ptr<Verifier> make_verifier() { return std::make_unique<CudaVerifier>(); }

}  // namespace shakedown::collectives::gpu
