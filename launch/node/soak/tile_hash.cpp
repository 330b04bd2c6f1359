#include "launch/node/soak/tile_hash.hpp"

#include <array>
#include <cstring>

#include "common/error.hpp"

namespace shakedown::node {
namespace {

std::uint64_t hash_of_rows(const std::byte* first, std::int64_t stride, int row_bytes) {
  std::array<std::uint64_t, kHashLanes> chains{};
  std::size_t pair = 0;
  for (int row = 0; row < kTileEdge; ++row)
    for (int at = 0; at < row_bytes; at += 16) {
      std::array<std::uint64_t, 2> words{};
      std::memcpy(words.data(), first + row * stride + at, sizeof(words));
      std::uint64_t& chain = chains[pair++ % kHashLanes];
      chain = chained(chained(chain, words[0]), words[1]);
    }
  std::uint64_t hash = 0;
  for (int lane = 0; lane < kHashLanes; ++lane)
    hash += share_of_lane(chains[static_cast<std::size_t>(lane)], lane);
  return hash;
}

}  // namespace

std::uint64_t hash_of_tile(const std::byte* matrix, const TileGrid& grid, std::int64_t tile) {
  return hash_of_rows(matrix + grid.begin(tile), grid.row_bytes(), grid.tile_row_bytes());
}

std::uint64_t hash_of_tile(const std::vector<std::byte>& tile) {
  const int row_bytes = static_cast<int>(tile.size()) / kTileEdge;
  return hash_of_rows(tile.data(), row_bytes, row_bytes);
}

std::vector<std::byte> read_tile(Device& device, ConstView matrix, const TileGrid& grid,
                                 std::int64_t tile, Stream& stream) {
  ENSURE(tile >= 0 && tile < grid.tiles(), "the tile is in the matrix");
  ENSURE(static_cast<std::int64_t>(matrix.bytes()) == grid.rows * grid.row_bytes(), "its size");
  const auto row_bytes = static_cast<std::size_t>(grid.tile_row_bytes());
  std::vector<std::byte> bytes(kTileEdge * row_bytes);
  const auto* from = static_cast<const std::byte*>(matrix.data) + grid.begin(tile);
  for (std::size_t row = 0; row < kTileEdge; ++row)
    device.copy(bytes.data() + row * row_bytes,
                from + static_cast<std::int64_t>(row) * grid.row_bytes(), row_bytes, stream);
  stream.synchronize();
  return bytes;
}

}  // namespace shakedown::node
