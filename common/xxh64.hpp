// XXH64, the checksum of packed images: 64 bits at the speed of memory.
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
#pragma once

#include <cstdint>
#include <span>

namespace shakedown {

/// With seed 0, as `xxhsum -H1` prints it.
std::uint64_t xxh64(std::span<const std::uint8_t> bytes);

}  // namespace shakedown
