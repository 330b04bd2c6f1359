// Faults that tests inject into the parts of a soak. What measures knows nothing of them: it is
// given kernels, probes or copies that do one thing wrong.
#pragma once

#include <cstdint>
#include <memory>

#include "launch/node/soak/memory_test.hpp"
#include "launch/node/soak/sm_probe.hpp"
#include "launch/node/soak/transfer_load.hpp"

namespace shakedown::node {

/// A bit of one word that does not hold what is written to it: checks find it inverted.
struct MemoryFault {
  std::uint64_t word = 12345;
  int bit = 17;
  int times = -1;                 // that it is wrong; -1: always
  int processor = kAnyProcessor;  // only where this one reads it, at whichever address
};
std::unique_ptr<SweepKernels> inject(const MemoryFault& fault, Device& device,
                                     std::unique_ptr<SweepKernels> kernels);

/// A bit of a word that arrives, on one way.
struct CopyFault {
  CopyWay way = CopyWay::host_to_device;
  std::uint64_t word = 1234;
  int bit = 5;
  int times = -1;  // -1: always
};
std::unique_ptr<CopyLoad> inject(const CopyFault& fault, Device& device, const LoadSettings& load,
                                 const CopySettings& settings);

/// A processor one of whose lanes is wrong.
struct ProbeFault {
  int processor = 0;
  int times = -1;  // -1: always
};
std::unique_ptr<Probe> inject(const ProbeFault& fault, std::unique_ptr<Probe> probe);

}  // namespace shakedown::node
