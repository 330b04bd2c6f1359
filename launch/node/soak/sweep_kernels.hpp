// Writes words by a rule and checks them, at the speed of memory and where the memory is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/device.hpp"
#include "launch/node/soak/memory_words.hpp"

namespace shakedown::node {

/// A part of the tested memory: whole groups of 16 bytes.
struct MemoryBlock {
  View words;               // uint64
  std::uint64_t first = 0;  // the number of its first word
};

inline constexpr int kAnyProcessor = -1;

/// What is done to each word of a block: checked, then overwritten. Both rules are of one kind.
struct Sweep {
  std::optional<WordRule> check;
  std::optional<WordRule> write;
  bool descending = false;
  std::uint32_t id = 0;           // MemoryError::sweep has it
  int processor = kAnyProcessor;  // else by this one alone: an SM, or a core
};

/// Of the rules that there are: one at least.
WordKind kind_of(const Sweep& sweep);

/// One word that was not what it must be.
struct MemoryError {
  std::uint64_t index = 0;
  std::uint64_t expected = 0, found = 0;
  std::uint64_t found_again = 0;  // by a second reading
  std::uint32_t sweep = 0;
  std::int32_t processor = 0;  // that read it
};

/// What sweeps have found; in device memory while they run. The count is exact, the list bounded.
struct MemoryErrors {
  static constexpr std::size_t kListed = 256;
  unsigned long long count = 0;
  unsigned long long swept_by_one = 0;  // sweeps by one processor that this processor has done
  MemoryError list[kListed];
};

class SweepKernels {
 public:
  virtual ~SweepKernels() = default;
  /// Enqueues. A sweep by one processor that does not get there does nothing, and is not counted.
  virtual void sweep(const MemoryBlock& block, const Sweep& sweep, MemoryErrors* found,
                     Stream& stream) const = 0;
  /// The processors' numbers: SMs, or the cores that this process may use.
  virtual std::vector<int> processors() const = 0;
};

namespace cpu {
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);
}
namespace gpu {
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);
}
/// Throws UsageError where the backend is not built.
std::unique_ptr<SweepKernels> make_sweep_kernels(Device& device);

}  // namespace shakedown::node
