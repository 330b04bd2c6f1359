// What a word of the tested memory holds, as a function of its index: the same on host and device.
#pragma once

#include <cstdint>

#include "common/host_device.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

/// Words have 8 bytes and are numbered through all of the tested memory.
enum class WordKind {
  address,   // the word's own byte offset
  random,    // a hash of index and seed
  constant,  // zeros
  walking,   // a one, at bit (index + seed) modulo 64
};

/// The value of a word: of its kind, with the bits of `flip` inverted.
struct WordRule {
  WordKind kind = WordKind::constant;
  std::uint64_t seed = 0;
  std::uint64_t flip = 0;
  bool operator==(const WordRule&) const = default;
};

/// The two words of 16 bytes share one hash: a hash for each word would cost a GPU more time than
/// its memory does.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t random_word(std::uint64_t index, std::uint64_t seed) {
  const std::uint64_t hash = number_format::hash(seed, index / 2);
  return index % 2 == 0 ? hash : ((hash << 29) | (hash >> 35)) ^ 0xA5A5A5A5A5A5A5A5U;
}

/// `kind` is given apart from the rule so that a kernel knows it when it is compiled.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t word_of(WordKind kind, const WordRule& rule,
                                                   std::uint64_t index) {
  switch (kind) {
    case WordKind::address: return (index * 8) ^ rule.flip;
    case WordKind::random: return random_word(index, rule.seed) ^ rule.flip;
    case WordKind::constant: return rule.flip;
    case WordKind::walking: return (std::uint64_t{1} << ((index + rule.seed) % 64)) ^ rule.flip;
  }
  return 0;
}

}  // namespace shakedown::node
