// A wrong word of memory, tried again: written and read by one processor, by others, and elsewhere.
#pragma once

#include <optional>
#include <vector>

#include "launch/node/soak/error_placing.hpp"
#include "launch/node/soak/sweep_kernels.hpp"

namespace shakedown::node {

/// A block of the tested memory and what its words hold; none: nothing was written yet.
struct MemoryPart {
  MemoryBlock block;
  std::optional<WordRule> holds;
};

/// Keeps the little memory that retrials need, for there is none left while a test goes on.
class MemoryRetrial {
 public:
  MemoryRetrial(Device& device, const SweepKernels& kernels);

  /// Tries the word with the rule that it broke. Afterwards all parts hold what they held.
  Evidence collect(const std::vector<MemoryPart>& parts, const MemoryError& error,
                   const WordRule& rule, Stream& stream, int repeats = 100);
  /// The same word of this memory, for an error of another GPU.
  Attempts attempt(const std::vector<MemoryPart>& parts, std::uint64_t index, const WordRule& rule,
                   Stream& stream, int repeats = 100);

 private:
  class OneWord;

  Device& device_;
  const SweepKernels& kernels_;
  Buffer errors_;   // MemoryErrors of the retrial
  Buffer ignored_;  // and of what only pushes the word out of the caches
};

}  // namespace shakedown::node
