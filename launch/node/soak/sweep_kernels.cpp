#include "launch/node/soak/sweep_kernels.hpp"

#include "common/error.hpp"

namespace shakedown::node {

WordKind kind_of(const Sweep& sweep) {
  ENSURE(sweep.check || sweep.write, "a sweep does nothing");
  ENSURE(!sweep.check || !sweep.write || sweep.check->kind == sweep.write->kind,
         "a sweep checks and writes words of one kind");
  return sweep.check ? sweep.check->kind : sweep.write->kind;
}

std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device) {
  return device.kind() == BackendKind::gpu ? gpu::make_sweep_kernels(device)
                                           : cpu::make_sweep_kernels(device);
}

}  // namespace shakedown::node
