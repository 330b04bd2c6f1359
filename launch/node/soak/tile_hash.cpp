#include "launch/node/soak/tile_hash.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/ensure.hpp"
#include "common/numbers.hpp"

namespace shakedown::node {

std::uint64_t hash_of_tile(const std::vector<std::byte>& tile, std::uint64_t seed) {
  std::uint64_t hash = 0;
  for (std::size_t word = 0; word < tile.size() / 8; ++word) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &tile[8 * word], sizeof(bits));
    hash += share_of_word(bits, key_of_word(seed, word));
  }
  return hash;
}

std::vector<std::byte> read_tile(Device& device, ConstView matrix, const TileGrid& grid,
                                 const Turn& turn, std::int64_t tile, Stream& stream) {
  ENSURE(tile >= 0 && tile < grid.tiles(), "the tile is in the matrix");
  ENSURE(static_cast<std::int64_t>(matrix.bytes()) == grid.rows * grid.row_bytes(), "its size");
  const auto row_bytes = static_cast<std::size_t>(grid.tile_row_bytes());
  const std::int64_t place = turn.rows.place_of_tile(tile / grid.across()) * grid.across() +
                             turn.columns.place_of_tile(tile % grid.across());
  std::vector<std::byte> turned(static_cast<std::size_t>(grid.tile_bytes()));
  const auto* from = static_cast<const std::byte*>(matrix.data) + grid.begin(place);
  for (std::size_t row = 0; row < kTileEdge; ++row)
    device.copy(turned.data() + row * row_bytes,
                from + static_cast<std::int64_t>(row) * grid.row_bytes(), row_bytes, stream);
  stream.synchronize();
  std::vector<std::byte> bytes(turned.size());
  const auto width = static_cast<std::size_t>(grid.element_bytes);
  for (int row = 0; row < kTileEdge; ++row)
    for (int column = 0; column < kTileEdge; ++column) {
      const auto own =
          static_cast<std::size_t>(turn.rows.line(row) * kTileEdge + turn.columns.line(column));
      const auto at = static_cast<std::size_t>(row * kTileEdge + column);
      std::memcpy(&bytes[own * width], &turned[at * width], width);
    }
  return bytes;
}

namespace {

/// Half the distance from 1 to the next number of the accumulator: of Hopper's fp8 products it has
/// 13 bits below the highest of a sum's largest term.
double unit_roundoff(ProductType type) {
  switch (type) {
    case ProductType::fp64: return 0x1p-53;
    case ProductType::fp8: return 0x1p-13;
    case ProductType::int8: return 0;
    default: return 0x1p-24;
  }
}

/// tf32 keeps 10 bits of each factor.
double input_error(ProductType type) { return type == ProductType::tf32 ? 0x1p-10 : 0; }

std::vector<double> rows_of(const ProductSpec& spec, Operands operands, std::uint64_t seed,
                            int matrix, std::int64_t first_row) {
  const std::int64_t k = spec.k;
  std::vector<double> rows(static_cast<std::size_t>(kTileEdge * k));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < kTileEdge * k; ++i)
    rows[static_cast<std::size_t>(i)] = operand_value(
        spec.type, operands, seed, matrix, static_cast<std::uint64_t>(first_row * k + i));
  return rows;
}

}  // namespace

TileGrid grid_of(const ProductSpec& spec) {
  return {spec.m, spec.n, static_cast<int>(size_of(result_type(spec.type)))};
}

HostTile host_tile(const ProductSpec& spec, Operands operands, std::uint64_t seed,
                   std::int64_t tile) {
  const TileGrid grid = grid_of(spec);
  const auto a = rows_of(spec, operands, seed, 0, tile / grid.across() * kTileEdge);
  const auto b = rows_of(spec, operands, seed, 1, tile % grid.across() * kTileEdge);
  const auto k = static_cast<std::size_t>(spec.k);
  const double sum_error = static_cast<double>(k) * unit_roundoff(spec.type);
  // Where any order of rounding may lose every digit, as in fp8: of errors without a common sign.
  const double relative = sum_error < 1
                              ? sum_error / (1 - sum_error) + 2.1 * input_error(spec.type)
                              : std::sqrt(static_cast<double>(k)) * unit_roundoff(spec.type);
  const number_format::Format format = number_format::format_of(result_type(spec.type));
  const double last_place = std::ldexp(1.0, -format.mantissa - 1);
  HostTile result{std::vector<double>(kTileEdge * kTileEdge),
                  std::vector<double>(kTileEdge * kTileEdge)};
#pragma omp parallel for schedule(static)
  for (int row = 0; row < kTileEdge; ++row)
    for (int column = 0; column < kTileEdge; ++column) {
      const double* x = &a[static_cast<std::size_t>(row) * k];
      const double* y = &b[static_cast<std::size_t>(column) * k];
      long double sum = 0;
      double magnitude = 0;
      for (std::size_t i = 0; i < k; ++i) {
        sum += static_cast<long double>(x[i]) * y[i];
        magnitude += std::abs(x[i] * y[i]);
      }
      const auto at = static_cast<std::size_t>(row * kTileEdge + column);
      result.value[at] = static_cast<double>(sum);
      if (operands == Operands::integers || spec.type == ProductType::int8) continue;
      result.bound[at] = relative * magnitude + 1.01 * last_place * std::abs(result.value[at]);
      if (operands == Operands::denormals) result.bound[at] += magnitude;  // 0 where A is flushed
    }
  return result;
}

std::uint64_t element_bits(const std::vector<std::byte>& bytes, std::size_t index,
                           int element_bytes) {
  std::uint64_t bits = 0;
  const auto width = static_cast<std::size_t>(element_bytes);
  ENSURE((index + 1) * width <= bytes.size(), "the element is in the tile");
  std::memcpy(&bits, bytes.data() + index * width, width);  // both platforms are little-endian
  return bits;
}

std::vector<std::size_t> beyond_bound(const HostTile& tile, const std::vector<std::byte>& bytes,
                                      DataType type) {
  const number_format::Format format = number_format::format_of(type);
  std::vector<std::size_t> wrong;
  for (std::size_t i = 0; i < tile.value.size(); ++i) {
    const double found =
        number_format::decode(format, element_bits(bytes, i, static_cast<int>(size_of(type))));
    if (!(std::abs(found - tile.value[i]) <= tile.bound[i])) wrong.push_back(i);
  }
  return wrong;
}

}  // namespace shakedown::node
