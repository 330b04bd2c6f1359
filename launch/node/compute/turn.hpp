// Turns of a product: the same product with the rows of A and the rows of B in another order. C has
// the same elements in other places, each of them the same sum in the same order: the same to the
// bit, and computed by another SM, warp and lane.
#pragma once

#include <cstdint>

#include "common/host_device.hpp"

namespace shakedown::node {

/// Rows and columns of a tile of C.
inline constexpr int kTileEdge = 128;
/// Tiles in a row or column of a C that can be turned.
inline constexpr int kMostTiles = 64;

/// An order of lines, the rows or the columns of C: tiles of lines move as a whole, lines within
/// their tile. Place 0 is the launch's first line, wherever that comes from.
struct LineOrder {
  bool moved = false;                   // else each line is at its own place
  std::uint8_t tiles[kMostTiles] = {};  // by place: the tile that is there
  std::uint8_t lines[kTileEdge] = {};   // by place within a tile: the line of the tile

  SHAKEDOWN_HOST_DEVICE std::int64_t tile(std::int64_t place) const {
    return moved ? tiles[place] : place;
  }
  SHAKEDOWN_HOST_DEVICE int line(int place) const { return moved ? lines[place] : place; }
  /// The line that is at a place of the whole.
  SHAKEDOWN_HOST_DEVICE std::int64_t original(std::int64_t place) const {
    return moved ? std::int64_t{tiles[place / kTileEdge]} * kTileEdge + lines[place % kTileEdge]
                 : place;
  }
  /// Where a tile is, and a line of it.
  std::int64_t place_of_tile(std::int64_t tile) const;
  int place_of_line(int line) const;
};

/// Columns move in groups of 16 bytes of C.
struct Turn {
  std::uint32_t number = 0;
  LineOrder rows, columns;
};

/// `groups`: columns that move as one. Number 0 moves nothing; any other is drawn from the seed and
/// needs m and n of whole tiles, kMostTiles at most.
Turn make_turn(std::int64_t m, std::int64_t n, int group, std::uint64_t seed, std::uint32_t number);

}  // namespace shakedown::node
