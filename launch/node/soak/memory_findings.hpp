// What wrong words of memory have in common: corrupted addresses are periodic where an address or
// data line is at fault, and a weak cell has its one bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "launch/node/soak/sweep_kernels.hpp"

namespace shakedown::node {

/// "bit 17", "bits 0, 17", "41 bits".
std::string bits_text(std::uint64_t difference);

struct CommonTraits {
  std::uint64_t any_bits = 0;  // wrong in some word
  std::uint64_t set = 0,
                cleared = 0;  // words with bits that are 1 instead of 0, and 0 instead of 1
  std::uint64_t lowest = 0;   // index
  std::uint64_t period = 0;   // the greatest number that divides all distances; 0: one index alone
  int lane = -1;              // index modulo 32 where all share it, and the period is not 0
  std::size_t transient = 0;  // words that were right when read again
};
CommonTraits traits_of(std::span<const MemoryError> errors);

/// "3 words of 8 bytes: bit 17, 1 instead of 0; every 4096 words, index 5 modulo 32". `count` are
/// all, of which `listed` may be the first few.
std::string findings_text(std::span<const MemoryError> listed, std::uint64_t count);

}  // namespace shakedown::node
