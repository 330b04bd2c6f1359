// A tile of a product recomputed by the CPU: the juror where there are one or two GPUs.
#pragma once

#include <vector>

#include "launch/node/compute/product.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node {

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
