#include "launch/node/soak/memory_kernels.hpp"

#include "common/error.hpp"

namespace shakedown::node {

WordKind kind_of(const Sweep& sweep) {
  ENSURE(sweep.check || sweep.write, "a sweep does nothing");
  ENSURE(!sweep.check || !sweep.write || sweep.check->kind == sweep.write->kind,
         "a sweep checks and writes words of one kind");
  return sweep.check ? sweep.check->kind : sweep.write->kind;
}

std::unique_ptr<MemoryKernels> make_memory_kernels(Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_memory_kernels(device)
                                           : cpu::make_memory_kernels(device);
}

}  // namespace shakedown::node
