// A hash of 64 bits of each tile of a matrix, made where the matrix is, at the speed of its memory:
// so every product of a soak can be checked. Host and devices make the same one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/device.hpp"
#include "common/host_device.hpp"
#include "common/numbers.hpp"
#include "launch/node/compute/product.hpp"

namespace shakedown::node {

/// A row-major matrix [rows, columns] of `element_bytes`, in tiles; tile t is (t / across, t %
/// across). Rows and columns are multiples of kTileEdge.
struct TileGrid {
  std::int64_t rows = 0, columns = 0;
  int element_bytes = 0;

  SHAKEDOWN_HOST_DEVICE std::int64_t across() const { return columns / kTileEdge; }
  SHAKEDOWN_HOST_DEVICE std::int64_t tiles() const { return rows / kTileEdge * across(); }
  SHAKEDOWN_HOST_DEVICE std::int64_t row_bytes() const { return columns * element_bytes; }
  SHAKEDOWN_HOST_DEVICE int tile_row_bytes() const { return kTileEdge * element_bytes; }
  SHAKEDOWN_HOST_DEVICE int tile_bytes() const { return kTileEdge * tile_row_bytes(); }
  /// Byte of the matrix where the tile begins.
  SHAKEDOWN_HOST_DEVICE std::int64_t begin(std::int64_t tile) const {
    return tile / across() * kTileEdge * row_bytes() + tile % across() * tile_row_bytes();
  }
};

/// What was seen of one tile in a batch of products of the same operands in the same turn, which
/// must all be alike: the first hash and those that differ from it. Whether the first one is right
/// is for the jury.
struct TileRecord {
  std::uint64_t first = 0;
  std::uint64_t differing = 0;  // products that differed
};

using number_format::mix;

// NH (Black, Halevi, Krawczyk, Krovetz & Rogaway: UMAC, CRYPTO 1999): the sum over a tile's words
// of 8 bytes of (low + key's low)(high + key's high), the additions modulo 2^32, the sum modulo
// 2^64.
//   - The keys are those of the word's place in the product before any turn, so the hash is free of
//     the order in which words are added, and the same in every turn; exchanged words differ.
//   - Any two different tiles have the same hash for at most one in 2^32 choices of keys, whatever
//     the tiles are; alike ones always have. The keys are drawn anew with the operands.

/// The keys of word `word` of a tile, row after row in its own order.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t key_of_word(std::uint64_t seed, std::uint64_t word) {
  return number_format::hash(~seed, word);
}

/// A word's share of the hash.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t share_of_word(std::uint64_t word, std::uint64_t key) {
  const auto low = static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(key);
  const auto high = static_cast<std::uint32_t>(word >> 32) + static_cast<std::uint32_t>(key >> 32);
  return std::uint64_t{low} * high;
}

/// What a tile's record becomes by the hash of a batch's product.
SHAKEDOWN_HOST_DEVICE inline void add_hash(TileRecord& record, std::uint64_t hash,
                                           std::uint32_t product) {
  if (product == 0)
    record = {hash, 0};
  else if (hash != record.first)
    ++record.differing;
}

/// The hash of a tile's bytes, row after row in its own order.
std::uint64_t hash_of_tile(const std::vector<std::byte>& tile, std::uint64_t seed);

/// The bytes of a tile, row after row in its own order, from where the turned matrix is. Waits for
/// the stream.
std::vector<std::byte> read_tile(Device& device, ConstView matrix, const TileGrid& grid,
                                 const Turn& turn, std::int64_t tile, Stream& stream);

/// Enqueues hashes on the stream.
class TileHasher {
 public:
  virtual ~TileHasher() = default;
  /// The keys of a tile's words, in device memory.
  virtual void make_keys(std::uint64_t seed, View keys, Stream& stream) const = 0;
  /// Adds the hashes of the batch's product `product` (0: the first) to `records`, of grid.tiles()
  /// in device memory, in the order of the product before its turn.
  virtual void hash(ConstView matrix, const TileGrid& grid, const Turn& turn, ConstView keys,
                    std::uint32_t product, TileRecord* records, Stream& stream) const = 0;
};

namespace cpu {
std::unique_ptr<TileHasher> make_tile_hasher();
}
namespace gpu {
std::unique_ptr<TileHasher> make_tile_hasher();
}
/// Throws UsageError where the backend is not built.
inline std::unique_ptr<TileHasher> make_tile_hasher(BackendKind kind) {
  return kind == BackendKind::gpu ? gpu::make_tile_hasher() : cpu::make_tile_hasher();
}

// A tile of a product recomputed by the CPU: the juror where there are one or two GPUs.

/// C's tiles.
TileGrid grid_of(const ProductSpec& spec);

/// A tile, row after row, in extended precision, and how far from it a right result may be.
struct HostTile {
  std::vector<double> value;
  std::vector<double> bound;
};

/// With integers, `value` is what C must be, and `bound` is 0. Else the bound is that of a sum of k
/// products in any order (Higham 2002, section 3.1) in the type's accumulator, and of one rounding
/// to the type of C: what is farther away is wrong, what is nearer need not be right. In fp8 that
/// bound is none from k = 8192 on; it is then that of random errors, sqrt(k) u (Higham & Mary
/// 2019).
HostTile host_tile(const ProductSpec& spec, Operands operands, std::uint64_t seed,
                   std::int64_t tile);

/// The elements of a tile's bytes that lie beyond the bound; NaN does.
std::vector<std::size_t> beyond_bound(const HostTile& tile, const std::vector<std::byte>& bytes,
                                      DataType type);

/// The bits of element `index` in bytes of elements of that size.
std::uint64_t element_bits(const std::vector<std::byte>& bytes, std::size_t index,
                           int element_bytes);

}  // namespace shakedown::node
