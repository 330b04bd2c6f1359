#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::gpu {
namespace {

constexpr int kThreads = 256;

/// A block per tile. A thread reads 16 bytes at a time: rows of a tile have 128 bytes or a
/// multiple.
__global__ void __launch_bounds__(kThreads)
    hash_tiles_kernel(const std::byte* matrix, TileGrid grid, std::uint32_t product,
                      TileRecord* records) {
  const std::int64_t tile = blockIdx.x;
  const std::byte* first = matrix + grid.begin(tile);
  const std::int64_t stride = grid.row_bytes();
  const int pairs = grid.tile_row_bytes() / 16;  // per row; a power of two
  unsigned long long hash = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileEdge * pairs; i += kThreads) {
    const int row = i / pairs;
    const auto words =
        __ldcs(reinterpret_cast<const ulonglong2*>(first + row * stride) + (i - row * pairs));
    hash += hash_of_word(words.x, 2 * static_cast<std::uint64_t>(i));
    hash += hash_of_word(words.y, 2 * static_cast<std::uint64_t>(i) + 1);
  }
  for (int distance = 16; distance > 0; distance /= 2)
    hash += __shfl_down_sync(0xFFFFFFFFU, hash, distance);
  __shared__ unsigned long long sums[kThreads / 32];
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = hash;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) hash += sums[warp];
  add_hash(records[tile], hash, product);
}

class CudaTileHasher final : public TileHasher {
 public:
  void hash(ConstView matrix, const TileGrid& grid, std::uint32_t product, TileRecord* records,
            Stream& stream) const override {
    hash_tiles_kernel<<<static_cast<unsigned>(grid.tiles()), kThreads, 0,
                        shakedown::gpu::native(stream)>>>(
        static_cast<const std::byte*>(matrix.data), grid, product, records);
    CHECK_LAUNCH();
  }
};

}  // namespace

std::unique_ptr<TileHasher> make_tile_hasher() { return std::make_unique<CudaTileHasher>(); }

}  // namespace shakedown::node::gpu
