#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::cpu {
namespace {

class CpuTileHasher final : public TileHasher {
 public:
  void hash(ConstView matrix, const TileGrid& grid, std::uint32_t product, TileRecord* records,
            Stream&) const override {
    const auto* bytes = static_cast<const std::byte*>(matrix.data);
#pragma omp parallel for schedule(static)
    for (std::int64_t tile = 0; tile < grid.tiles(); ++tile)
      add_hash(records[tile], hash_of_tile(bytes, grid, tile), product);
  }
};

}  // namespace

std::unique_ptr<TileHasher> make_tile_hasher() { return std::make_unique<CpuTileHasher>(); }

}  // namespace shakedown::node::cpu
