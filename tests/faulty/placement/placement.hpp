#pragma once
// What libplacement.so's host code and its patch share.
#include <cstdint>

namespace shakedown::placement {

/// Launches of one kernel with one grid. `sm[launch * blocks + block]`: the number of the SM that
/// the block ran on, plus one; 0: not seen. Later launches than `launches` are not noted.
struct Launches {
  std::uint32_t entered;  // blocks, of all launches so far
  std::uint32_t blocks, blocks_x, blocks_y;
  std::uint32_t launches;
  std::uint16_t* sm;
};

}  // namespace shakedown::placement
