// The layout of a packed file: the images of a folder in one file, in their order. Little-endian.
//
//   kMagic
//   the images' bytes, one after another, without gaps
//   the index: a PackEntry per image; the names of the classes, then the images' paths below the
//   folder, each ended by a NUL
//   a PackFooter, which ends the file
#pragma once

#include <array>
#include <cstdint>

namespace shakedown::training {

constexpr std::array<char, 8> kPackMagic{'S', 'H', 'A', 'K', 'P', 'A', 'C', 'K'};
constexpr std::uint64_t kPackVersion = 1;

struct PackEntry {
  std::uint64_t checksum;  // XXH64 of the image
  std::uint32_t bytes;
  std::uint32_t label;
};
static_assert(sizeof(PackEntry) == 16);

struct PackFooter {
  std::uint64_t images;
  std::uint64_t classes;
  std::uint64_t index_bytes;
  std::uint64_t index_checksum;  // XXH64 of the index
  std::uint64_t version;
  std::array<char, 8> magic;
};
static_assert(sizeof(PackFooter) == 48);

}  // namespace shakedown::training
