// The patterns of the memory test as one march: elements that each sweep all of the memory before
// the next one begins, so that a write to one address that changes another is found wherever both
// lie (van de Goor, "Testing Semiconductor Memories", 1991).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "launch/node/soak/memory_words.hpp"

namespace shakedown::node {

enum class MemoryPattern {
  random,         // a hash of address and seed, then its inverse
  address,        // each word's own address, then its inverse
  inversions,     // moving inversions of five backgrounds: 0, 01, 0011, 00001111, 8 zeros 8 ones
  walking_ones,   // one bit of a word, at each of its 64 places
  walking_zeros,  // the inverse
  retention,      // random words and their inverse, each left alone for a while
};
const char* name_of(MemoryPattern pattern);  // "walking ones"
std::vector<MemoryPattern> all_memory_patterns();

/// All of the memory is checked by one rule, then overwritten by the next, word by word.
struct MarchElement {
  MemoryPattern pattern = MemoryPattern::random;
  std::optional<WordRule> check, write;
  bool descending = false;
  bool waits = false;  // for the time of retention, before it
};

/// A pass: all elements of the patterns in order. Random words differ from pass to pass.
std::vector<MarchElement> march_of(const std::vector<MemoryPattern>& patterns, std::uint64_t seed,
                                   std::uint64_t pass);

}  // namespace shakedown::node
