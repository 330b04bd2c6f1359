#include "common/error.hpp"
#include "common/gpu/check.hpp"
#include "common/gpu/native.hpp"
#include "launch/node/soak/tile_hash.hpp"

namespace shakedown::node::gpu {
namespace {

/// A block per tile, a thread per chain. A pair of words costs 18 instructions, a fifth of what an
/// H200's SM could issue while its memory delivers them, and a thread has four loads under way.
template <int kElementBytes>
__global__ void __launch_bounds__(kHashLanes)
    hash_tiles_kernel(const std::byte* matrix, std::int64_t row_bytes, std::uint32_t product,
                      TileRecord* records) {
  constexpr int kPairs = kTileEdge * kElementBytes / 16;  // per row of a tile
  constexpr int kRows = kHashLanes / kPairs;              // that a block reads at a time
  const unsigned lane = threadIdx.x;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * kTileEdge + lane / kPairs;
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * kPairs + lane % kPairs;
  const std::byte* at = matrix + row * row_bytes + pair * 16;
  std::uint64_t hash = 0;
#pragma unroll 8
  for (int i = 0; i < kTileEdge / kRows; ++i, at += kRows * row_bytes) {
    const auto words = __ldcs(reinterpret_cast<const ulonglong2*>(at));
    hash = chained(chained(hash, words.x), words.y);
  }
  hash = share_of_lane(hash, lane);
  for (int distance = 16; distance > 0; distance /= 2)
    hash += __shfl_down_sync(0xFFFFFFFFU, hash, distance);
  __shared__ std::uint64_t sums[kHashLanes / 32];
  if (lane % 32 == 0) sums[lane / 32] = hash;
  __syncthreads();
  if (lane != 0) return;
  for (int warp = 1; warp < kHashLanes / 32; ++warp) hash += sums[warp];
  add_hash(records[blockIdx.y * gridDim.x + blockIdx.x], hash, product);
}

auto kernel_for(const TileGrid& grid) {
  switch (grid.element_bytes) {
    case 2: return hash_tiles_kernel<2>;
    case 4: return hash_tiles_kernel<4>;
    case 8: return hash_tiles_kernel<8>;
    default: throw InternalError("elements of a product have 2, 4 or 8 bytes");
  }
}

class CudaTileHasher final : public TileHasher {
 public:
  void hash(ConstView matrix, const TileGrid& grid, std::uint32_t product, TileRecord* records,
            Stream& stream) const override {
    const dim3 tiles(static_cast<unsigned>(grid.across()),
                     static_cast<unsigned>(grid.rows / kTileEdge));
    kernel_for(grid)<<<tiles, kHashLanes, 0, shakedown::gpu::native(stream)>>>(
        static_cast<const std::byte*>(matrix.data), grid.row_bytes(), product, records);
    CHECK_LAUNCH();
  }
};

}  // namespace

std::unique_ptr<TileHasher> make_tile_hasher() { return std::make_unique<CudaTileHasher>(); }

}  // namespace shakedown::node::gpu
