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
  /// Byte of the matrix where the tile begins.
  SHAKEDOWN_HOST_DEVICE std::int64_t begin(std::int64_t tile) const {
    return tile / across() * kTileEdge * row_bytes() + tile % across() * tile_row_bytes();
  }
};

/// What was seen of one tile in a batch of products of the same operands, which must all be alike:
/// the first hash and those that differ from it. Whether the first one is right is for the jury.
struct TileRecord {
  std::uint64_t first = 0;
  std::uint64_t other = 0;      // the hash of the last product that differed
  std::uint32_t differing = 0;  // products that differed
  std::uint32_t product = 0;    // the first of them, by its number in the batch
};

using number_format::mix;

// The words of a tile (of 8 bytes, row by row) go in pairs to kHashLanes chains: pair i to chain
// i % kHashLanes. The hash is the sum of what the ends of the chains become by mix().
//   - A step of a chain is a bijection of the chain and of the word, and so is mix(): a tile with
//     one wrong word never has the right hash.
//   - Several wrong words cancel where a later one is wrong by exactly what the earlier ones have
//     made of the chain, or the ends of chains by the same sum. Both depend on all data before, so
//     for errors that know nothing of the hash it happens once in 2^64: flips, equal ones too,
//     exchanged words, rows and columns, shifted rows.
//   - Within a pair it depends on less, but equal flips of one bit in one or several elements of
//     both words never cancel: those of the first leave 11 bits or more of the chain wrong, and the
//     second changes four of them at most.

/// Threads of a GPU's block.
inline constexpr int kHashLanes = 256;

/// A chain with one more word. The upper bits are folded onto the lower ones first: a product
/// passes on differences upwards alone, and that of the top bit as it is.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t chained(std::uint64_t chain, std::uint64_t word) {
  const std::uint64_t x = chain ^ word;
  return (x ^ (x >> 35)) * 0xFF51AFD7ED558CCDU;  // a multiplier of MurmurHash3's finalizer
}

/// The share of a chain's end in the tile's hash.
SHAKEDOWN_HOST_DEVICE inline std::uint64_t share_of_lane(std::uint64_t chain, int lane) {
  return number_format::hash(chain, static_cast<std::uint64_t>(lane));
}

/// What a tile's record becomes by the hash of a batch's product.
SHAKEDOWN_HOST_DEVICE inline void add_hash(TileRecord& record, std::uint64_t hash,
                                           std::uint32_t product) {
  if (product == 0) {
    record = {hash, 0, 0, 0};
  } else if (hash != record.first) {
    if (record.differing++ == 0) record.product = product;
    record.other = hash;
  }
}

/// The hash of a tile in host memory; `matrix` is the whole.
std::uint64_t hash_of_tile(const std::byte* matrix, const TileGrid& grid, std::int64_t tile);
/// The same of a tile's bytes alone, row after row.
std::uint64_t hash_of_tile(const std::vector<std::byte>& tile);

/// The bytes of a tile, row after row, from where the matrix is. Waits for the stream.
std::vector<std::byte> read_tile(Device& device, ConstView matrix, const TileGrid& grid,
                                 std::int64_t tile, Stream& stream);

/// Enqueues hashes on the stream.
class TileHasher {
 public:
  virtual ~TileHasher() = default;
  /// Adds the hashes of the batch's product `product` (0: the first) to `records`, of grid.tiles()
  /// in device memory.
  virtual void hash(ConstView matrix, const TileGrid& grid, std::uint32_t product,
                    TileRecord* records, Stream& stream) const = 0;
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
