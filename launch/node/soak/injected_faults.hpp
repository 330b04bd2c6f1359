// Faults that tests inject into the parts of a soak. What measures knows nothing of them: it is
// given kernels, probes or copies that do one thing wrong.
#pragma once

#include <cstdint>
#include <memory>

#include "launch/node/soak/memory_kernels.hpp"

namespace shakedown::node {

/// A bit of one word that does not hold what is written to it: checks find it inverted.
struct MemoryFault {
  std::uint64_t word = 12345;
  int bit = 17;
  int times = -1;                 // that it is wrong; -1: always
  int processor = kAnyProcessor;  // only where this one reads it, at whichever address
};
std::unique_ptr<MemoryKernels> inject(const MemoryFault& fault, Device& device,
                                      std::unique_ptr<MemoryKernels> kernels);

}  // namespace shakedown::node
